"""Encoders can be stopped between their layers and tiles."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from h3serve import Generator
from h3serve.core.errors import Cancelled
from h3serve.models.text_encoder.text_encoder import EncoderInput
from h3serve.pipeline.encode import encode_audio, encode_frames, encode_text, stopping
from h3serve.pipeline.engine import Engine

CPU = torch.device("cpu")


class Stop:
    """Counts its calls; the one numbered `at` raises."""

    def __init__(self, at: int = 10**9) -> None:
        self.at, self.calls = at, 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise Cancelled("stop")


def test_every_run_of_a_module_is_preceded_by_a_call_and_nothing_stays() -> None:
    network, stop = nn.Sequential(*(nn.Linear(2, 2) for _ in range(5))), Stop(at=8)
    with stopping(network, stop, CPU):
        network(torch.zeros(1, 2))
        assert stop.calls == 5
        with pytest.raises(Cancelled):
            network(torch.zeros(1, 2))
    network(torch.zeros(1, 2))
    assert stop.calls == 8


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Generator.from_pretrained("demo-random", device="cpu", partition="ref2va").engine


def text(engine: Engine, between: Callable[[], None]) -> Any:
    ids = engine.tokenizer.ids("a fox")
    return encode_text(engine, EncoderInput(torch.tensor(ids), torch.zeros(len(ids), dtype=torch.long)), between)


def frames(engine: Engine, between: Callable[[], None]) -> Any:
    return encode_frames(engine, np.zeros((39, 64, 64, 3), np.uint8), between)


def wave(engine: Engine, between: Callable[[], None]) -> Any:
    return encode_audio(engine, np.zeros((2, 64_000), np.float32), between)


@pytest.mark.parametrize(
    ("encode", "least"),
    [(text, 50), (frames, 3), (wave, 7)],  # decoder layers; chunks of 17 frames; five strides, first and last
)
def test_an_encoder_asks_between_its_parts_and_keeps_nothing_when_it_is_stopped(
    engine: Engine, encode: Callable[[Engine, Callable[[], None]], Any], least: int
) -> None:
    for at in (1, least):
        with pytest.raises(Cancelled):
            encode(engine, Stop(at))
    whole = Stop()
    encode(engine, whole)
    assert whole.calls >= least
    again = Stop()
    encode(engine, again)
    assert again.calls == 0  # it was kept this time


def test_a_long_prompt_is_cancelled_while_it_is_encoded(engine: Engine) -> None:
    reports: list[str] = []

    def on_progress(progress: Any) -> None:
        reports.append(progress.stage)
        if reports.count("encode text") == 20:
            raise Cancelled("the job was cancelled")

    target = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}
    picture = {"type": "image", "role": "reference", "uri": _picture()}
    body = {"task": "ref2va", "prompt": "rain " * 300, "target": target, "conditions": [picture]}
    with pytest.raises(Cancelled):
        Generator(engine).generate(body, on_progress=on_progress)
    assert reports.count("encode text") == 20 and "encode conditions" not in reports


def _picture() -> str:
    import base64
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
