"""The encoder's kernels against its plain layers, at odd sizes and strides.

On a CUDA device where there is one, in Triton's interpreter (tests/conftest.py) otherwise.
"""

import dataclasses

import pytest
import torch

from h3serve.models.video_vae.video_encoder import Downsample, Level, ResBlock, VideoEncoder
from tests.keymaps import fill
from tests.models.tiny_video_vae import CONFIG

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")

from h3serve.models.video_vae import video_encoder_triton  # noqa: E402
from h3serve.models.video_vae.conv3d_triton import Operand  # noqa: E402

WIDE = dataclasses.replace(CONFIG, channels=(64, 128, 64, 64, 64, 64), blocks_per_level=1, norm_groups=8)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def filled(module: torch.nn.Module, seed: int = 1) -> torch.nn.Module:
    fill(module, seed)
    return module.to(DEVICE).requires_grad_(False)


def last(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 2, 3, 4, 1).contiguous()


def close(fused: torch.Tensor, plain: torch.Tensor, tolerance: float = 1e-3) -> None:
    plain = last(plain)
    assert fused.shape == plain.shape and fused.dtype == torch.float32
    assert (fused - plain).norm() / plain.norm() < tolerance


def rounded(operand: Operand, interior: tuple[int, ...]) -> torch.Tensor:
    batch, channels = operand.batch, operand.rows.shape[1]
    padded = operand.rows.view(batch, operand.frames, operand.height, operand.width, channels)
    return padded[:, 2:, 1:-1, 1:-1].reshape(*interior)


@pytest.mark.parametrize("size", [(3, 6, 10), (1, 16, 16), (2, 5, 7)])
def test_operand_is_the_normalized_and_padded_x(size: tuple[int, int, int]) -> None:
    x = 3 + draw(2, 64, *size)
    block = filled(ResBlock(64, 64, WIDE))
    expected = torch.nn.functional.silu(block.norm1(x))
    operand = video_encoder_triton.normalized(last(x), block.norm1)
    close(rounded(operand, last(x).shape).float(), expected)
    padded = torch.nn.functional.pad(expected, (1, 1, 1, 1, 0, 0), mode="reflect")
    padded = torch.nn.functional.pad(padded, (0, 0, 0, 0, 2, 0))
    close(operand.rows.float().view(last(padded).shape), padded)


@pytest.mark.parametrize("widths", [(64, 64), (64, 128), (128, 64)])
@pytest.mark.parametrize("size", [(3, 6, 10), (1, 18, 20)])
def test_block(widths: tuple[int, int], size: tuple[int, int, int]) -> None:
    block = filled(ResBlock(*widths, WIDE))
    x = draw(2, widths[0], *size)
    close(video_encoder_triton.run_block(block, last(x)), block(x))


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize("size", [(5, 6, 10), (1, 4, 16), (3, 2, 2)])
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-6])
def test_downsample(time: int, size: tuple[int, int, int], scale: float) -> None:
    layer = filled(Downsample(64, time, 2))
    layer.conv.bias.mul_(scale)
    x = scale * draw(2, 64, *size)
    close(video_encoder_triton.run_downsample(layer, last(x)), layer(x))


def test_whole_encoder() -> None:
    encoder = filled(VideoEncoder(WIDE))
    pixels = draw(1, 3, 5, 32, 48)
    plain = encoder(pixels)
    encoder.trunk = video_encoder_triton.trunk
    assert any(isinstance(level, Level) for level in encoder.down)
    fused = encoder(pixels)
    assert fused.shape == plain.shape
    assert 0 < (fused - plain).norm() / plain.norm() < 2e-3
