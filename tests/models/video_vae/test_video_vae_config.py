"""Both spellings of the configuration, and the names and sizes of the released video VAE."""

import json
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch

from h3serve.core.errors import CheckpointError
from h3serve.models.video_vae.tiling import split_axis
from h3serve.models.video_vae.video_vae import VideoVAE, key_map, normalize_pixels
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig
from tests.models.tiny_video_vae import tiny
from tests.paths import official


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def original() -> dict:
    folder = official() / "FL2VA" / "video_vae"
    return read(folder / "source" / "config.json") | read(folder / "config.json")


def diffusers() -> dict:
    return read(official() / "vae" / "config.json")


def test_both_spellings_agree() -> None:
    config = VideoVAEConfig.from_dict(original())
    assert config == VideoVAEConfig.from_dict(diffusers())
    assert config.channels == (128, 256, 256, 512, 512, 1024)
    assert (config.space_ratio, config.time_ratio) == (16, 4)
    assert (config.chunk_latents, config.window_latents, config.lead_frames) == (5, 7, 3)
    assert (config.width, config.rotated_dim) == (2048, 48)
    assert (config.tile_size, config.tile_overlap) == (256, 64)


def test_latent_statistics() -> None:
    config = VideoVAEConfig.from_dict(diffusers())
    float32 = torch.float32
    mean, std = torch.tensor([0.858090341, 0.705603182]), torch.tensor([1.22237742, 2.61278439])
    assert torch.equal(torch.tensor(config.latents_mean, dtype=float32)[[0, 23]], mean)
    assert torch.equal(torch.tensor(config.latents_std, dtype=float32)[[0, 23]], std)


def test_released_names_and_sizes() -> None:
    config = VideoVAEConfig.from_dict(diffusers())
    with torch.device("meta"):
        vae = VideoVAE(config)
    sizes = {name: value.numel() for name, value in vae.state_dict().items()}
    assert sum(sizes.values()) == 2_603_868_984
    assert sum(n for name, n in sizes.items() if name.startswith("decoder.")) == 2_423_530_496
    assert sum(n for name, n in sizes.items() if name.startswith("encoder.")) == 180_335_536

    index = read(official() / "vae" / "diffusion_pytorch_model.safetensors.index.json")
    assert index["metadata"]["total_size"] == 4 * sum(sizes.values())
    sources = [source for entry in key_map(config, "diffusers").entries for source in entry.sources]
    assert len(sources) == len(set(sources)) == 703
    assert set(sources) == set(index["weight_map"])

    original_map = key_map(config, "original")
    assert [entry.sources for entry in original_map.entries] == [(name,) for name in sizes]
    assert original_map.unused == ("decoder.mask_token",)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"causal_decoder": True}, "causal_decoder is True, only False is implemented"),
        ({"padding_mode": "zeros"}, "padding_mode is 'zeros'"),
        ({"vae_decoder_tiling": 0}, "vae_decoder_tiling is 0"),
        ({"latents_std": [1.0]}, "must have 24 values"),
        ({"space_down": [2, 2]}, "equal length"),
        ({"vit_decoder_kwargs": {"ffn_use_gated": False}}, "ffn_use_gated is False"),
    ],
)
def test_refuses(change: dict, sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        VideoVAEConfig.from_dict(original() | change)


def covers(tile: int, overlap: int, unit: int = 16) -> bool:
    """Whether tiles of this size, on whole latents, cover every length up to 512 px exactly and go forward."""
    for length in range(unit, 513, unit):
        try:
            axis = split_axis(length, tile=tile, overlap=overlap, unit=unit)
        except ZeroDivisionError:
            return False
        edges = [axis.size, *axis.starts, *axis.overlaps]
        forward = all(a < b <= a + axis.size for a, b in pairwise(axis.starts))
        if any(n % unit or n < 0 for n in edges) or not forward or axis.starts[-1] + axis.size != length:
            return False
    return True


def test_tiles_that_cover_no_canvas_are_refused_and_all_others_taken() -> None:
    for tile, overlap in product(range(0, 129, 8), range(-16, 145, 8)):
        try:
            VideoVAEConfig.from_dict(original() | {"vae_tile_size": tile, "vae_tile_overlap_min": overlap})
            taken = True
        except CheckpointError:
            taken = False
        wide_enough = tile != 16  # one latent: there is nothing to mirror an edge from (the next test)
        assert taken == (covers(tile, overlap) and wide_enough), (tile, overlap)


@pytest.mark.parametrize(("tile", "works"), [(16, False), (32, True)])
def test_the_smallest_tile_that_the_encoder_takes(tile: int, works: bool) -> None:
    vae = tiny()
    vae.config = replace(vae.config, tile_size=tile, tile_overlap=0)
    with nullcontext() if works else pytest.raises(RuntimeError, match="[Pp]adding size should be less"):
        vae.encode(normalize_pixels(torch.zeros(1, 64, 64, 3, dtype=torch.uint8)))


@pytest.mark.parametrize(
    "change",
    [
        {"latents_std": [0.0] * 24},
        {"latents_std": [float("nan")] * 24},
        {"latents_mean": [float("inf")] * 24},
        {"num_res_blocks": 0},
        {"num_res_blocks": 1.5},
        {"num_res_blocks": True},
        {"ch": -1},
    ],
)
def test_numbers_that_would_fail_after_sampling(change: dict) -> None:
    with pytest.raises(CheckpointError, match="not a number|not a whole number|must be above 0"):
        VideoVAEConfig.from_dict(original() | change)


def test_missing_key_is_named() -> None:
    raw = diffusers()
    del raw["clip_length"]
    with pytest.raises(CheckpointError, match="clip_length is missing"):
        VideoVAEConfig.from_dict(raw)
