"""References matter: order, sound and picture each change the result, and labels follow the request's order."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from h3serve import Generator
from h3serve.media.write.outputs import save_wav

TARGET = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator.from_pretrained("demo-random", device="cpu", partition="ref2va")


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("media")
    rng = np.random.default_rng(0)
    paths = {}
    for name in ("one", "two"):
        paths[name] = str(folder / f"{name}.png")
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8)).save(paths[name])
    paths["voice"] = str(folder / "voice.wav")
    save_wav(paths["voice"], (0.2 * rng.standard_normal((2, 64_000))).astype(np.float32))
    return paths


def make(generator: Generator, *conditions: dict[str, Any], keep: tuple[str, ...] = ()) -> Any:
    body = {"task": "ref2va", "prompt": "as <Picture 1>", "target": TARGET, "num_inference_steps": 1}
    return generator.generate({**body, "conditions": list(conditions)}, keep=keep)


def picture(uri: str) -> dict[str, Any]:
    return {"type": "image", "role": "reference", "uri": uri}


def test_each_reference_and_their_order_are_felt(generator: Generator, media: dict[str, str]) -> None:
    one, two = picture(media["one"]), picture(media["two"])
    voice = {"type": "audio", "role": "reference", "uri": media["voice"]}
    clips = [make(generator, *c) for c in ((one,), (one, voice), (one, two), (two, one))]
    for i, a in enumerate(clips):
        for b in clips[i + 1 :]:
            assert not np.array_equal(a.video, b.video) and not np.array_equal(a.audio, b.audio)


def test_keyframes_beside_references_are_used_and_not_shown(generator: Generator, media: dict[str, str]) -> None:
    one = picture(media["one"])
    first = {"type": "image", "role": "keyframe", "frame_index": 0, "uri": media["two"]}
    alone = make(generator, one, keep=("text", "positions"))
    hybrid = make(generator, first, one, keep=("text", "positions"))
    assert np.array_equal(alone.kept["token_ids"], hybrid.kept["token_ids"])
    assert hybrid.kept["condition_video_rows"] == alone.kept["condition_video_rows"] + 4
    assert not np.array_equal(alone.video, hybrid.video)


def test_a_longer_sound_is_cut_to_the_target(generator: Generator, tmp_path: Path, media: dict[str, str]) -> None:
    long = tmp_path / "long.wav"
    save_wav(long, (0.1 * np.random.default_rng(3).standard_normal((2, 10 * 32_000))).astype(np.float32))
    voice = {"type": "audio", "role": "reference", "uri": str(long)}
    result = make(generator, picture(media["one"]), voice, keep=("positions",))
    assert result.kept["condition_audio_rows"] == 2 * 179  # 107 frames at 24 fps are 178.3 latents


@pytest.mark.parametrize("seconds", [4, 4.3, 5, 7, 15])
def test_the_clip_is_never_shorter_than_asked(generator: Generator, seconds: float) -> None:
    from h3serve.core.request import parse_request

    fields = {"task": "t2va", "prompt": "x", "target": {**TARGET, "duration_seconds": seconds}}
    plan = generator.ingest.plan(parse_request(fields))
    assert plan.seconds >= seconds - 0.5 / 24 and plan.describe()["seconds"] == round(plan.seconds, 4)
