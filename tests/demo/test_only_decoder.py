"""Training a decoder alone: what is encoded, and thus every denoiser, stays as it is."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from demo.train import audio_vae, sizes, video_vae
from demo.train.loop import Clock, save_weights
from h3serve.models.audio_vae.audio_vae import AudioVAE
from h3serve.models.video_vae.video_vae import VideoVAE


@pytest.mark.parametrize(
    ("script", "make", "settings", "decoder"),
    [
        (audio_vae, lambda: AudioVAE(sizes.audio_vae_config()), {"batch_seconds": 2}, {"dec_in_proj", "decoder"}),
        (
            video_vae,
            lambda: VideoVAE(sizes.video_vae_config()),
            {"pixels": 64 * 64, "max_area": 64 * 64},
            {"post_quant_conv", "decoder"},
        ),
    ],
    ids=["sound", "picture"],
)
def test_a_decoder_alone_leaves_all_latents_alone(
    script: ModuleType, make: Callable[[], Any], settings: dict[str, int], decoder: set[str], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    vae = make()
    script.initialize(vae)
    name, channels = script.__name__.rpartition(".")[2], vae.config.latent_channels
    start = tmp_path / "start" / f"{name}.safetensors"
    save_weights(dict(vae.named_parameters()), start)
    given = {"latents_mean": [0.5] * channels, "latents_std": [2.0] * channels}
    start.with_suffix(".json").write_text(json.dumps({"statistics": given}))
    script.run(argparse.Namespace(seed=1, start=start, only_decoder=True, **settings), Clock(3.0), tmp_path, 1)
    assert json.loads((tmp_path / f"{name}.json").read_text())["statistics"] == given
    before, after = load_file(start), load_file(tmp_path / f"{name}.safetensors")
    changed = {key.split(".")[0] for key, tensor in after.items() if not tensor.equal(before[key])}
    assert changed == decoder


@pytest.mark.parametrize("script", [audio_vae, video_vae])
def test_there_have_to_be_latents_to_leave_alone(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["train", "--only-decoder", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        script.main()
    assert "--only-decoder needs --start" in capsys.readouterr().err
