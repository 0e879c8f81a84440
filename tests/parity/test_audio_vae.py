"""The audio VAE against diffusers: same weights in, same latents and sound out."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from h3serve.models.audio_vae.audio_vae import AudioVAE, AudioVAEConfig, key_map

diffusers = pytest.importorskip("diffusers")

LIMIT = 1e-5  # of the tensor's largest value
ROWS_FLOOR = 2e-5  # both sides are 1.2e-5 off a float64 run; recorded with another thread count
AUDIO_FLOOR = 6e-5  # what one thread against two does to a whole generation's sound


def off(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


def stats(config: AudioVAEConfig) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(config.latents_mean)[:, None], torch.tensor(config.latents_std)[:, None]


def fill(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Every parameter random and none at its neutral value, the sound neither silent nor clamped."""

    def draw(value: torch.Tensor, scale: float) -> torch.Tensor:
        return scale * torch.randn(value.shape, generator=generator)

    with torch.no_grad():
        for name, value in sorted(model.named_parameters()):
            if name.endswith(("weight_g", "bias", "beta", "alpha", "norm.weight")):
                value.add_(draw(value, 0.1))
            elif value.ndim > 1:
                value.copy_(draw(value, value[0].numel() ** -0.5))
        loudest = model.decode(torch.randn(1, 32, 8, generator=generator)).sample.abs().max()
        model.decoder.conv_post.weight_g.mul_(0.3 / loudest)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[AudioVAE, torch.nn.Module, Path]:
    folder = tmp_path_factory.mktemp("audio_vae")
    generator = torch.Generator().manual_seed(3)
    theirs = diffusers.AutoencoderKLMiniMaxH3Audio(
        encoder_dim=4,
        latent_dim=128,
        num_attention_heads=4,
        decoder_dim=128,
        latents_mean=torch.randn(32, generator=generator).mul(0.3).tolist(),
        latents_std=torch.rand(32, generator=generator).add(1.4).tolist(),
    ).eval()
    fill(theirs, generator)
    theirs.save_pretrained(folder)
    config = AudioVAEConfig.from_dict(json.loads((folder / "config.json").read_text()))
    return load(folder, config), theirs, folder


def load(folder: Path, config: AudioVAEConfig) -> AudioVAE:
    """By the key map and into a network without storage, as the strict loader does it."""
    (file,) = folder.glob("*.safetensors")
    stored = load_file(file)
    entries = key_map(config, "diffusers").entries
    assert {source for e in entries for source in e.sources} == set(stored)
    with torch.device("meta"):
        vae = AudioVAE(config)
    vae.load_state_dict({e.target: stored[e.sources[0]] for e in entries}, strict=True, assign=True)
    return vae.eval()


@pytest.mark.parametrize("samples", [1, 800, 801, 12345])
def test_encode(pair: tuple[AudioVAE, torch.nn.Module, Path], samples: int) -> None:
    vae, theirs, _ = pair
    wave = 0.3 * torch.randn(2, samples, generator=torch.Generator().manual_seed(samples))
    with torch.no_grad():
        mean, std = stats(vae.config)
        expected = (theirs.encode(wave[:, None]).latent_dist.mode() - mean) / std
    assert off(vae.encode(wave), expected.transpose(1, 2).reshape(-1, 32)) <= LIMIT


@pytest.mark.parametrize("length", [1, 2, 23])
def test_decode(pair: tuple[AudioVAE, torch.nn.Module, Path], length: int) -> None:
    vae, theirs, _ = pair
    latents = torch.randn(2, 32, length, generator=torch.Generator().manual_seed(length))
    with torch.no_grad():
        mean, std = stats(vae.config)
        expected = theirs.decode(latents * std + mean).sample[:, 0]
    assert 0.05 < expected.abs().max() < 1
    assert off(vae.decode(latents), expected) <= LIMIT
    assert off(vae.decode(latents.transpose(1, 2).reshape(-1, 32)), expected) <= LIMIT


# --- whole requests ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(oracle_checkpoint: Path) -> AudioVAE:
    folder = oracle_checkpoint / "audio_vae"
    config = AudioVAEConfig.from_dict(json.loads((folder / "config.json").read_text()))
    return load(folder, config)


def test_sounds_of_the_oracle(oracle: Path, stored: AudioVAE) -> None:
    for file in sorted(oracle.glob("*.npz")):
        case = np.load(file)
        sound = stored.decode(torch.from_numpy(case["final_audio_latents"]))
        assert off(sound, torch.from_numpy(case["audio"])) <= AUDIO_FLOOR, file.stem


def test_audio_conditions_of_the_oracle(oracle: Path, stored: AudioVAE) -> None:
    seen = 0
    for file in sorted(oracle.glob("*.npz")):
        case = np.load(file)
        waves = sorted(name for name in case.files if name.startswith("prepared_") and "wave" in name)
        for number, name in enumerate(waves):
            rows = stored.encode(torch.from_numpy(case[name]))
            assert off(rows, torch.from_numpy(case[f"condition_audio{number}"])) <= ROWS_FLOOR, file.stem
            seen += 1
    assert seen >= 3
