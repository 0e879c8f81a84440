"""Patches against the arrays of transformers' image processor (its Pillow half)."""

import numpy as np
import pytest
import torch

from h3serve.models.text_encoder.vision_patches import image_grid, image_patches, video_grid, video_patches

H3_SETTINGS = {
    "size": {"longest_edge": 16_777_216, "shortest_edge": 65_536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture(scope="module")
def processor():
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    return module.Qwen2VLImageProcessorPil(**H3_SETTINGS)


@pytest.mark.parametrize("size", [(256, 288), (320, 224)])
def test_picture_equals_the_processor(processor, size: tuple[int, int]) -> None:
    pixels = noise(*size, 3)
    expected = processor(images=[pixels], return_tensors="pt")
    patches, grid = image_patches(pixels)
    assert [list(grid)] == expected["image_grid_thw"].tolist()
    assert torch.allclose(patches, expected["pixel_values"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(64, 96), (100, 70), (33, 500)])
def test_enlarged_picture_is_near_the_processor(processor, size: tuple[int, int]) -> None:
    """Pillow rounds the same filter a little differently: seldom, and by two steps of 255 at most."""
    pixels = noise(*size, 3)
    expected = processor(images=[pixels], return_tensors="pt")
    patches, grid = image_patches(pixels)
    assert [list(grid)] == expected["image_grid_thw"].tolist()
    difference = (patches - expected["pixel_values"]).abs() * 127.5
    assert difference.max() < 2.01 and (difference > 0.01).float().mean() < 0.02


def test_a_patch_holds_its_own_pixels_twice() -> None:
    pixels = noise(256, 288, 3)
    patches, grid = image_patches(pixels)
    assert grid == (1, 16, 18) and patches.shape == (288, 1536)
    # Patches run through each 2 x 2 square: number 7 is square 1, second row, second column.
    cut = patches[7].reshape(3, 2, 16, 16)
    expected = torch.from_numpy(pixels[16:32, 48:64]).permute(2, 0, 1) / 127.5 - 1
    assert torch.allclose(cut[:, 0], expected, atol=1e-6)
    assert torch.equal(cut[:, 0], cut[:, 1])


def test_clip_takes_every_twelfth_frame_and_repeats_an_odd_last_one() -> None:
    frames = noise(25, 64, 32, 3)  # frames 0, 12, 24 -> two blocks
    patches, grid = video_patches(frames)
    assert grid == (2, 4, 2) and patches.shape == (16, 1536)
    blocks = patches.reshape(2, 8, 3, 2, 256)
    seen = [frames[0], frames[12], frames[24], frames[24]]
    for block, first in ((0, 0), (1, 2)):
        for frame in (0, 1):
            corner = torch.from_numpy(seen[first + frame][:16, :16]).permute(2, 0, 1) / 127.5 - 1
            assert torch.allclose(blocks[block, 0, :, frame], corner.reshape(3, 256), atol=1e-6)


def test_grids_of_the_release() -> None:
    assert image_grid(1344, 768) == (1, 48, 84)
    assert video_grid(11, 1344, 768) == (6, 48, 84)
    assert video_grid(31, 1344, 768) == (16, 42, 74)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("step", [1, -1])
def test_read_only_and_strided_pixels_are_taken(step: int) -> None:
    """What media hand over may be a read-only mapping or a flipped view."""
    pixels = noise(256, 256, 3)[:, ::step]
    pixels.flags.writeable = False
    assert torch.equal(image_patches(pixels)[0], image_patches(pixels.copy())[0])
