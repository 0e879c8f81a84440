"""Both spellings of the configuration, and the names and sizes of the released video VAE."""

import json
from pathlib import Path

import pytest
import torch

from h3serve.core.errors import CheckpointError
from h3serve.models.video_vae import VideoVAE, key_map
from h3serve.models.video_vae_config import VideoVAEConfig
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


def test_missing_key_is_named() -> None:
    raw = diffusers()
    del raw["clip_length"]
    with pytest.raises(CheckpointError, match="clip_length is missing"):
        VideoVAEConfig.from_dict(raw)
