"""The video VAE on CUDA: float16 decode, batches, and frames copied out while the next window decodes."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from h3serve.models.kernels.attention import has_flash4
from h3serve.models.kernels.elementwise import gated_linear
from h3serve.models.video_vae.video_vae import VideoVAE, to_compute_dtype, to_uint8
from h3serve.runtime.offload.copy_to_host import to_host
from tests.models.tiny_video_vae import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def vae() -> VideoVAE:
    torch.manual_seed(0)
    return tiny()


def test_copies_are_whole_and_in_order() -> None:
    matrix = torch.randn(2048, 2048, device="cuda")

    def results() -> Iterator[tuple[torch.Tensor]]:
        for i in range(8):
            for _ in range(20):
                matrix @ matrix  # keeps the device busy
            yield (torch.full((1 << 22,), i, device="cuda", dtype=torch.uint8),)

    for i, (values,) in enumerate(to_host(results())):
        assert values.device.type == "cpu" and (values == i).all()
    assert i == 7


def test_the_next_window_is_queued_before_a_result_is_handed_out() -> None:
    made = []

    def results() -> Iterator[tuple[torch.Tensor]]:
        for i in range(3):
            made.append(i)
            yield (torch.full((1,), i, device="cuda"),)

    seen = [(int(values), len(made)) for (values,) in to_host(results())]
    assert seen == [(0, 2), (1, 3), (2, 3)]


def test_decode_does_not_wait_for_the_device(vae: VideoVAE) -> None:
    vae = to_compute_dtype(vae.cuda(), torch.float16)
    latents = torch.randn(1, 24, 12, 2, 2, device="cuda")
    vae.decode_all(latents)  # constants are made once
    torch.cuda.set_sync_debug_mode("error")
    try:
        frames = [to_uint8(chunk) for chunk in vae.decode(latents)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [len(chunk) for chunk in frames] == [17, 17, 5]


def test_float16_decode_is_near_float32(vae: VideoVAE) -> None:
    latents = torch.randn(1, 24, 7, 18, 20)
    expected = vae.decode_all(latents)
    vae = to_compute_dtype(vae.cuda(), torch.float16)
    vae.tile_batch = 4
    frames = vae.decode_all(latents.cuda()).cpu()
    assert 0 < (frames - expected).abs().max() < 1e-2


@pytest.mark.parametrize("width", [256, 2048])
def test_gated_product_with_a_bias(width: int) -> None:
    if not has_flash4(torch.device("cuda")):
        pytest.skip("FlashAttention-4 is not installed")
    from h3serve.models.kernels.gated_gemm import gated_linear_batched

    layer = nn.Linear(width, 8 * width, device="cuda", dtype=torch.float16).requires_grad_(False)
    x = torch.randn(3, 357, width, device="cuda", dtype=torch.float16)
    gate, up = (x.double() @ layer.weight.double().t() + layer.bias.double()).chunk(2, dim=-1)
    exact = gate * gate.sigmoid() * up
    errors = [(call(x, layer).double() - exact).norm() / exact.norm() for call in (gated_linear_batched, gated_linear)]
    assert errors[0] <= errors[1]


def test_projection_is_far_closer_than_one_of_half_precision() -> None:
    from h3serve.models.video_vae.decoder_ops_triton import project

    layer = nn.Linear(2048, 3072, device="cuda").requires_grad_(False)
    x = torch.randn(3, 357, 2048, device="cuda")
    exact = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double())
    error = float((project(x, layer).double() - exact).norm() / exact.norm())
    assert error < 3e-5, f"{error:.2e}"  # float16 alone: 3e-4


def test_encode_precisions(vae: VideoVAE) -> None:
    video = torch.randn(1, 3, 22, 64, 288)
    expected = vae.encode(video).mean
    vae.cuda()
    for encoder_dtype in (torch.float32, torch.float16):
        mean = to_compute_dtype(vae, torch.float16, encoder_dtype).encode(video.cuda()).mean.cpu()
        assert (mean - expected).norm() / expected.norm() < 5e-3
