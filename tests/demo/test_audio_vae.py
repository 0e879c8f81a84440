"""Training the audio VAE: what it trains is what h3serve runs, and a few steps leave a usable file."""

import json
from random import Random

import numpy as np
import pytest
import torch

from demo.train import audio_vae, sizes
from demo.train.audio_figures import compare, measure
from demo.train.loop import Clock
from demo.train.scenes import sound_batch
from demo.train.spectra import likeness, spectral_loss
from demo.train.weights import load_audio_vae
from h3serve.guard.audio_metrics import spectral_similarity
from h3serve.models.audio_vae.audio_vae import AudioVAE

CPU = torch.device("cpu")


def test_sounds_have_events_and_their_length() -> None:
    wave = sound_batch(Random(0), 16, 1, CPU)
    assert wave.shape == (16, 1, 32000)
    assert (wave.abs().amax((1, 2)) > 0.05).float().mean() > 0.4


def test_spectral_loss_hears_pitch_and_silence() -> None:
    t = torch.arange(16000) / 32000
    tone = 0.3 * torch.sin(2 * torch.pi * 440 * t)[None]
    near, far = tone * 0.95, 0.3 * torch.sin(2 * torch.pi * 880 * t)[None]
    assert spectral_loss(tone, tone) < 1e-3
    assert spectral_loss(tone, near) < spectral_loss(tone, far)
    assert spectral_loss(torch.zeros(1, 16000), 0.001 * torch.randn(1, 16000)) > 0.1


def test_likeness_is_what_guard_says() -> None:
    wave = sound_batch(Random(2), 2, 4, CPU)[0]
    low = torch.nn.functional.avg_pool1d(torch.randn_like(wave), 15, 1, 7)  # guard halves the rate without a filter
    for noise in (0.0, 0.001, 0.01):
        sound = wave + noise * low
        judged = spectral_similarity(wave[0, ::2].numpy(), sound[0, ::2].numpy())
        assert float(likeness(wave, sound)) == pytest.approx(judged, abs=0.02)


def test_first_sound_is_neither_loud_nor_silent() -> None:
    torch.manual_seed(0)
    vae = AudioVAE(sizes.audio_vae_config()).requires_grad_(False)
    audio_vae.initialize(vae)
    wave = sound_batch(Random(1), 2, 1, CPU)[:, 0]
    assert 1e-4 < vae.decode(vae.encode(wave)).std() < 0.3


def test_compare_finds_level_and_balance() -> None:
    wave = np.random.default_rng(0).normal(0, 0.1, (2, 32000)).astype(np.float32)
    assert compare(wave, wave)["similarity"] == pytest.approx(1)
    louder = wave * np.array([[2.0], [1.0]], np.float32)
    assert compare(wave, louder)["balance_db"] == pytest.approx(6.02, abs=0.01)
    assert compare(wave, louder)["level_db"] == pytest.approx(3.01, abs=0.01)


def test_a_few_steps_leave_a_usable_file(tmp_path) -> None:
    torch.manual_seed(0)
    vae = AudioVAE(sizes.audio_vae_config())
    audio_vae.initialize(vae)
    curve = audio_vae.train(vae, audio_vae.Batches(1, 2, CPU), Clock(3.0), tmp_path)
    measure(vae, curve, tmp_path, device=CPU, count=1)
    facts = json.loads((tmp_path / "audio_vae.json").read_text())
    assert facts["skipped"] == 0
    assert facts["steps"] > 0
    assert 0 <= facts["similarity_mean"] <= 1
    loaded = load_audio_vae(tmp_path / "audio_vae.safetensors")
    assert list(loaded.config.latents_std) == pytest.approx(facts["statistics"]["latents_std"])
    assert (tmp_path / "audio_vae.png").is_file()
