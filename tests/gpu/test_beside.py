"""Work on a stream of its own, while the other one is busy: the same bits."""

import pytest
import torch

from bench.synthetic_weights import synthetic_component
from h3serve.models.audio_vae.audio_vae import AudioVAE
from h3serve.runtime.offload.copy_to_host import own_stream

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


@torch.inference_mode()
def test_sound_that_is_decoded_beside_other_work_has_the_same_bits() -> None:
    vae = synthetic_component("audio_vae", device="cuda")
    assert isinstance(vae, AudioVAE)
    latents = torch.randn(2, 32, 207, device="cuda")
    alone = vae.decode(latents).cpu()
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    for _ in range(2):  # the second time the stream has its memory
        for _ in range(200):  # some 300 ms
            square @ square
        with own_stream(latents.device):
            beside = vae.decode(latents).cpu()
        assert torch.equal(beside, alone), f"{(beside - alone).abs().max()} apart"
