"""Tile positions of spec/vae_video.md 5.4, and stitching."""

import pytest
import torch

from h3serve.models.video_vae.tiling import Axis, cross_fade, split_axis, split_tiles, stitch

TABLE = {
    768: ((0, 160, 336, 512), (96, 80, 80)),
    1344: ((0, 176, 352, 528, 704, 896, 1088), (80, 80, 80, 80, 64, 64)),
    1024: ((0, 192, 384, 576, 768), (64, 64, 64, 64)),
    576: ((0, 160, 320), (96, 96)),
    544: ((0, 144, 288), (112, 112)),
    960: ((0, 176, 352, 528, 704), (80, 80, 80, 80)),
    512: ((0, 128, 256), (128, 128)),
    672: ((0, 128, 272, 416), (128, 112, 112)),
    256: ((0,), ()),
    64: ((0,), ()),
}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def released(length: int) -> Axis:
    return split_axis(length, tile=256, overlap=64, unit=16)


@pytest.mark.parametrize("length", TABLE)
def test_table(length: int) -> None:
    starts, overlaps = TABLE[length]
    assert released(length) == Axis(min(length, 256), starts, overlaps)


def test_counts() -> None:
    assert [len(released(n).starts) for n in (3648, 2048)] == [19, 11]  # 209 tiles


@pytest.mark.parametrize("length", range(16, 4097, 16))
def test_covers_exactly(length: int) -> None:
    axis = released(length)
    assert axis.starts[-1] + axis.size == length
    steps = [b - a for a, b in zip(axis.starts, axis.starts[1:], strict=False)]
    assert steps == [256 - shared for shared in axis.overlaps]
    assert all(shared >= 64 and shared % 16 == 0 for shared in axis.overlaps)
    if len(axis.starts) > 1:  # one tile fewer would not do
        assert 256 + 192 * (len(axis.starts) - 2) < length


def test_per_unit() -> None:
    assert released(768).per(16) == Axis(16, (0, 10, 21, 32), (6, 5, 5))


def test_cross_fade_weights() -> None:
    before, after = torch.zeros(1, 6), torch.ones(1, 7)
    faded = cross_fade(before, after, 5, dim=1)
    assert torch.equal(faded, torch.tensor([[0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0]]))
    # It is the end of `before` that is faded out.
    ramp = torch.arange(6.0)[None]
    assert torch.equal(cross_fade(ramp, torch.zeros(1, 2), 2, dim=1), torch.tensor([[4.0, 2.5]]))


def test_tiles_of_a_picture_stitch_back() -> None:
    picture = torch.randn(2, 3, 1, 464, 288, dtype=torch.float64)
    rows, columns = released(464), released(288)
    tiles = split_tiles(picture, rows, columns)
    assert len(tiles) == 6
    torch.testing.assert_close(stitch(tiles, rows, columns), picture)


def test_corner_blends_raw_neighbours_vertically_first() -> None:
    """Four constant tiles: in the corner the tile to the upper left has no share at all."""
    a, b, c, d = (torch.full((1, 4, 4), value) for value in (1000.0, 100.0, 10.0, 1.0))
    axis = Axis(4, (0, 2), (2,))
    corner = stitch([a, b, c, d], axis, axis)[0, 2:4, 2:4]
    for y in range(2):
        for x in range(2):
            vertical = 100.0 * (1 - y / 2) + 1.0 * (y / 2)
            assert corner[y, x] == 10.0 * (1 - x / 2) + vertical * (x / 2)
