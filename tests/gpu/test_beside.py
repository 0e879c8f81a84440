"""Work on a stream of its own: the same bits, and it does not wait for what is queued on the other one."""

import time

import pytest
import torch

from h3serve.models.audio_vae import AudioVAE
from h3serve.runtime.copy_out import own_stream
from h3serve.weights.synthetic import synthetic_component

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


@torch.inference_mode()
def test_sound_is_decoded_beside_other_work() -> None:
    vae = synthetic_component("audio_vae", device="cuda")
    assert isinstance(vae, AudioVAE)
    latents = torch.randn(2, 32, 207, device="cuda")
    alone = vae.decode(latents).cpu()
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    done = torch.cuda.Event()
    torch.cuda.synchronize()
    for _ in range(1400):  # some two seconds
        square @ square
    done.record()
    began = time.perf_counter()
    with own_stream(latents.device):
        beside = vae.decode(latents).cpu()
    waited = done.query()
    assert torch.equal(beside, alone), f"{(beside - alone).abs().max()} apart"
    assert not waited, f"all that was queued was done first, after {time.perf_counter() - began:.2f} s"
