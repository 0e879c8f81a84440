"""Flags of media become the very request that a file with the same words would be."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from h3serve.cli.main import run
from h3serve.core.request import GenerationRequest
from h3serve.media.write.outputs import save_wav
from h3serve.pipeline.generator import Generator
from h3serve.pipeline.ingest import Ingest


@pytest.fixture
def media(tmp_path: Path) -> Path:
    for name, size in (("tall", (60, 90)), ("wide", (120, 60)), ("flat", (64, 64))):
        Image.fromarray(np.zeros((*size[::-1], 3), np.uint8)).save(tmp_path / f"{name}.png")
    save_wav(tmp_path / "voice.wav", np.zeros((2, 70_000), np.float32) + np.float32(0.01))
    return tmp_path


@pytest.fixture(params=["generate", "plan"])
def asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command with flags up to the request that it makes, and returns that."""
    seen: list[GenerationRequest] = []

    class Stop(Exception):
        pass

    def stop(_self: Any, wanted: GenerationRequest, *_: Any, **__: Any) -> None:
        seen.append(wanted)
        raise Stop

    loaded = object.__new__(Generator)
    monkeypatch.setattr(Generator, "from_pretrained", lambda *_, **__: loaded)
    monkeypatch.setattr(Generator, "generate", stop)
    monkeypatch.setattr(Generator, "close", lambda _self: None)
    monkeypatch.setattr(Ingest, "plan", stop)

    def ask(*flags: str) -> GenerationRequest:
        with pytest.raises(Stop):
            run([request.param, "--prompt", "x", *flags])
        return seen.pop()

    return ask


def placed(request: GenerationRequest) -> list[tuple[str, str, int | None, str]]:
    return [(c.type, c.role, c.frame_index, Path(c.uri).name) for c in request.conditions]


FIRST, LAST = ("image", "keyframe", 0, "tall.png"), ("image", "keyframe", -1, "wide.png")


def test_keyframes(media: Path, asked: Any) -> None:
    first, last = ("--first-frame", str(media / "tall.png")), ("--last-frame", str(media / "wide.png"))
    assert placed(asked(*last)) == [LAST]
    assert placed(asked(*first)) == [FIRST]
    for flags in ((*first, *last), (*last, *first)):  # whatever the order of the flags
        wanted = asked(*flags)
        assert placed(wanted) == [FIRST, LAST] and wanted.task == "fl2va"


def test_references_keep_their_order(media: Path, asked: Any) -> None:
    files = {"wide.png": "image", "voice.wav": "audio", "flat.png": "image", "tall.png": "image"}
    for names in (list(files), list(files)[::-1]):
        flags = [flag for name in names for flag in ("--reference", str(media / name))]
        wanted = asked("--duration", "4", *flags)
        assert placed(wanted) == [(files[name], "reference", None, name) for name in names]
        assert wanted.task == "ref2va"
    named = asked("--duration", "4", "--reference", f"image={media / 'flat.png'}", "--reference", "video_audio=v.mp4")
    assert placed(named) == [("image", "reference", None, "flat.png"), ("video_audio", "reference", None, "v.mp4")]


def test_keyframes_beside_references(media: Path, asked: Any) -> None:
    last, reference = ("--last-frame", str(media / "wide.png")), ("--reference", str(media / "flat.png"))
    wanted = asked(*reference, *last, "--duration", "4")
    assert placed(wanted) == [LAST, ("image", "reference", None, "flat.png")] and wanted.task == "ref2va"


def test_every_other_flag_reaches_its_field(asked: Any) -> None:
    wanted = asked(
        *("--short-edge", "512", "--aspect-ratio", "4:3", "--duration", "7", "--steps", "9", "--seed", "8"),
        *("--solver", "multistep"),
    )
    assert wanted.target.model_dump(exclude_none=True) == {
        "short_edge": 512,
        "aspect_ratio": "4:3",
        "duration_seconds": 7,
    }
    assert (wanted.task, wanted.prompt, wanted.num_inference_steps, wanted.seed) == ("t2va", "x", 9, 8)
    assert wanted.solver == "multistep" and asked().solver == "euler"


def test_adapters_with_and_without_strength(media: Path, asked: Any) -> None:
    """A file may have = in its name; of a request file paths are beside it, what is no file is a name."""
    flags = ("--lora", "a.safetensors", "--lora", "b=c.safetensors", "--lora", "d.safetensors=-0.5")
    chosen = [(choice.name, choice.strength) for choice in asked(*flags).adapters]
    assert chosen == [("a.safetensors", 1), ("b=c.safetensors", 1), ("d.safetensors", -0.5)]
    (media / "here.safetensors").touch()
    fields = {
        "prompt": "x",
        "target": {"duration_seconds": 4},
        "loras": [{"name": "here.safetensors"}, {"name": "style"}],
    }
    (media / "r.json").write_text(json.dumps(fields))
    assert [choice.name for choice in asked(str(media / "r.json")).adapters] == [
        str(media / "here.safetensors"),
        "style",
    ]
    assert [choice.name for choice in asked("--lora", "style", str(media / "r.json")).adapters] == ["style"]


def test_flags_win_over_the_file(media: Path, asked: Any) -> None:
    target = {"short_edge": 768, "aspect_ratio": "1:1", "duration_seconds": 4}
    keyframe = {"type": "image", "role": "keyframe", "frame_index": 0, "uri": "tall.png"}
    fields = {"task": "fl2va", "prompt": "of the file", "conditions": [keyframe], "target": target, "seed": 3}
    (media / "r.json").write_text(json.dumps(fields))
    wanted = asked("--seed", "0", "--duration", "6", str(media / "r.json"))
    assert (wanted.prompt, wanted.seed, wanted.target.duration_seconds) == ("x", 0, 6)
    assert (wanted.target.short_edge, wanted.target.aspect_ratio, wanted.task) == (768, "1:1", "fl2va")
    assert placed(wanted) == [FIRST]


def test_sigmas_come_by_the_file_and_steps_may_only_agree(media: Path, asked: Any) -> None:
    fields = {"prompt": "x", "target": {"duration_seconds": 4}, "sigmas": {"video": [1, 0.9, 0], "audio": [1, 0.5, 0]}}
    (media / "r.json").write_text(json.dumps(fields))
    assert asked(str(media / "r.json")).num_inference_steps == 2
    assert asked("--steps", "2", str(media / "r.json")).sigmas.video == (1, 0.9, 0)


def test_media_of_flags_replace_those_of_the_file(media: Path, asked: Any) -> None:
    keyframe = {"type": "image", "role": "keyframe", "frame_index": 0, "uri": "tall.png"}
    fields = {"prompt": "x", "conditions": [keyframe], "target": {"duration_seconds": 4}, "task": "fl2va"}
    (media / "r.json").write_text(json.dumps(fields))
    wanted = asked("--last-frame", str(media / "wide.png"), str(media / "r.json"))
    assert placed(wanted) == [LAST]


@pytest.mark.parametrize("outputs", [("a.xyz", "b.mp4"), ("b.mp4", "a.xyz"), ("b.mp4", "c.wav", "a.xyz")])
def test_every_output_is_checked_before_a_model_is_loaded(
    outputs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Generator, "from_pretrained", lambda *_, **__: pytest.fail("loaded"))
    assert run(["generate", "--prompt", "x", *(part for name in outputs for part in ("--out", name))]) == 2
    assert "a.xyz" in capsys.readouterr().err
