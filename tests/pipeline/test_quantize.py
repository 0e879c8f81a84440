"""Layers quantized while they are loaded: one option, wherever the weights then live."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from h3serve import Generator
from h3serve.core.errors import RequestError
from h3serve.core.settings import EngineSettings
from h3serve.models.quality import has_float8
from h3serve.pipeline import engine as engine_module
from h3serve.pipeline.replica import shape_of
from h3serve.weights.demo.demo_random import write_demo_checkpoint

TARGET = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}
REQUEST: dict[str, Any] = {"task": "t2va", "prompt": "rain", "target": TARGET, "num_inference_steps": 2, "seed": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "checkpoint"
    write_demo_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def quantized(folder: Path) -> Generator:
    return Generator.from_pretrained(folder, device="cpu", quantize="fp8", residency="resident")


def test_transformer_and_encoder_are_quantized_and_the_rest_is_not(quantized: Generator) -> None:
    engine = quantized.engine
    assert engine.quality == "lossless" and engine.float8
    assert has_float8(engine.denoiser("t2va")) and has_float8(engine.text_encoder)
    assert not has_float8(engine.video_vae) and not has_float8(engine.audio_vae)


@pytest.mark.parametrize("residency", ["offload", "stream"])
def test_same_bits_wherever_they_live(folder: Path, quantized: Generator, residency: str) -> None:
    elsewhere = Generator.from_pretrained(folder, device="cpu", quantize="fp8", residency=residency)
    first, second = (generator.generate(REQUEST) for generator in (quantized, elsewhere))
    assert np.array_equal(first.video, second.video) and np.array_equal(first.audio, second.audio)


def test_it_is_not_what_lossless_promises(folder: Path, quantized: Generator) -> None:
    plain = Generator.from_pretrained(folder, device="cpu", quantize="none")
    latents = [g.generate(REQUEST, keep=["latents"]).kept["final_video_latents"] for g in (plain, quantized)]
    assert 0.002 < np.linalg.norm(latents[0] - latents[1]) / np.linalg.norm(latents[0]) < 0.3
    with pytest.raises(RequestError, match="quantized to 8 bits"):
        quantized.generate({**REQUEST, "quality": "lossless"})


def test_a_gpu_without_such_units_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    with pytest.raises(RequestError, match=r"quantize: 'fp8' .* NVIDIA A100 has no 8-bit matrix units"):
        engine_module._check_settings(EngineSettings("m", quantize="fp8"), torch.device("cuda", 0))


def test_several_ranks_share_the_sequence_and_never_a_layer(folder: Path) -> None:
    shape = shape_of(EngineSettings(str(folder), device="cpu", quantize="fp8", gpus=2)).shape
    assert (shape.ulysses, shape.tp) == (2, 1)
    with pytest.raises(RequestError, match="tp: 2 .* 8 bits"):
        shape_of(EngineSettings(str(folder), device="cpu", quantize="fp8", gpus=2, tp=2))
