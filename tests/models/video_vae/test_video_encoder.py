"""What the encoder looks at: the past only, each frame's own statistics, the right padding."""

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from h3serve.models.video_vae.video_encoder import CausalConv3d, Downsample, FrameGroupNorm, VideoEncoder
from h3serve.models.video_vae.video_vae import to_compute_dtype
from tests.keymaps import fill
from tests.models.tiny_video_vae import CONFIG, tiny


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def encoder() -> VideoEncoder:
    encoder = VideoEncoder(CONFIG)
    fill(encoder, 3)
    return encoder


@torch.no_grad()
def test_future_frames_do_not_matter(encoder: VideoEncoder) -> None:
    video = torch.randn(1, 3, 17, 32, 32)
    changed = video.clone()
    changed[:, :, 9:] += 1  # latent 2 covers frames 5..8
    before, after = encoder(video), encoder(changed)
    assert before.shape == (1, 48, 5, 2, 2)
    assert torch.equal(before[:, :, :3], after[:, :, :3])
    assert not torch.isclose(before[:, :, 3:], after[:, :, 3:]).all()


@torch.no_grad()
def test_one_picture_is_the_first_frame_of_any_clip(encoder: VideoEncoder) -> None:
    video = torch.randn(1, 3, 17, 32, 32)
    picture = encoder(video[:, :, :1])
    assert picture.shape == (1, 48, 1, 2, 2)
    torch.testing.assert_close(picture, encoder(video)[:, :, :1])


def test_time_is_padded_with_zeros_in_front_only() -> None:
    conv = CausalConv3d(1, 1)
    torch.nn.init.constant_(conv.bias, 0.0)
    torch.nn.init.zeros_(conv.weight)
    conv.weight.data[0, 0, :, 1, 1] = torch.tensor([100.0, 10.0, 1.0])
    ones = torch.ones(1, 1, 4, 3, 3)
    assert conv(ones)[0, 0, :, 1, 1].tolist() == [1.0, 11.0, 111.0, 111.0]


def test_space_is_reflected() -> None:
    conv = CausalConv3d(1, 1)
    torch.nn.init.constant_(conv.bias, 0.0)
    torch.nn.init.zeros_(conv.weight)
    conv.weight.data[0, 0, 2, 1, 0] = 1.0  # looks at its left neighbour
    row = torch.tensor([5.0, 6.0, 7.0, 8.0]).expand(1, 1, 1, 4, 4)
    assert conv(row)[0, 0, 0, 0].tolist() == [6.0, 5.0, 6.0, 7.0]


def test_downsampling_pads_right_and_bottom_only() -> None:
    down = Downsample(1, 1, 2)
    picture = torch.randn(1, 1, 1, 6, 6)
    padded = F.pad(picture[:, :, 0], (0, 1, 0, 1), mode="reflect")
    expected = F.conv2d(padded, down.conv.weight[:, :, 2], down.conv.bias, stride=2)
    torch.testing.assert_close(down(picture)[:, :, 0], expected)


@pytest.mark.parametrize(("size", "halved"), [(64, 32), (5, 2)])
def test_downsampling_halves_space_and_rounds_time_up(size: int, halved: int) -> None:
    down = Downsample(1, 2, 2)
    assert down(torch.randn(1, 1, 17, size, size)).shape == (1, 1, 9, halved, halved)


def test_group_norm_is_per_frame() -> None:
    norm = FrameGroupNorm(2, 4)
    torch.nn.init.normal_(norm.weight)
    video = torch.randn(2, 4, 3, 5, 5) * torch.tensor([1.0, 10.0, 100.0]).view(1, 1, 3, 1, 1)
    together = norm(video)
    for i in range(3):
        alone = F.group_norm(video[:, :, i], 2, norm.weight, norm.bias)
        torch.testing.assert_close(together[:, :, i], alone)


def as_tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to 10 bits of mantissa."""
    return ((x.view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


class Tf32Convolutions(TorchFunctionMode):
    """What tensor cores make of float32 convolutions: rounded operands, float32 sums."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is F.conv3d:
            args = (as_tf32(args[0]), as_tf32(args[1]), *args[2:])
        return function(*args, **(kwargs or {}))


@torch.no_grad()
def test_half_operands_are_as_near_as_tf32() -> None:
    video = torch.randn(1, 3, 17, 64, 64)
    vae = tiny()
    exact = vae.encode(video).mean
    with Tf32Convolutions():
        tf32 = vae.encode(video).mean
    half = to_compute_dtype(tiny(), torch.float32, torch.float16).encode(video).mean
    tf32_error, half_error = ((m - exact).norm() / exact.norm() for m in (tf32, half))
    assert 0 < half_error < 1.2 * tf32_error


@torch.no_grad()
@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_half_operands_of_any_range(factor: float) -> None:
    conv = CausalConv3d(3, 4)
    torch.nn.init.zeros_(conv.bias)
    x = factor * torch.randn(1, 3, 2, 8, 8)
    exact = conv(x)
    conv.weight.data = conv.weight.data.half()
    assert conv(x).dtype == torch.float32
    assert (conv(x) - exact).norm() / exact.norm() < 1e-3
