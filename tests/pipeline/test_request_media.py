"""From a request's files to the packed rows: which picture goes where, at which size, with which noise.

Expected values are Pillow's pixels, fresh torch generators and the arithmetic of spec/packing.md 3.2-3.4 and
spec/scheduler.md 4.4-4.6.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from h3serve import Generator
from h3serve.core.errors import Cancelled
from h3serve.core.geometry import SizeRules
from h3serve.core.request import parse_request
from h3serve.media.write.outputs import save_wav
from h3serve.pipeline import generator as generator_module
from h3serve.pipeline.generation_progress import Meter, Progress
from h3serve.pipeline.ingest import Ingest
from h3serve.pipeline.intermediates import GROUPS, Intermediates

RULES = SizeRules(max_canvas_area=8192, picture_short_edge=64, clip_short_edge=64)
CANVAS = (96, 64)
TARGET = {"short_edge": 64, "aspect_ratio": "4:3", "duration_seconds": 4}  # 107 frames, 32 latent frames, 178 of sound
SIZES = {"one": (100, 70), "two": (130, 90), "three": (64, 64)}
SPAN = 5 / 3 * sum((1, 4, 4, 4, 4)[k % 5] for k in range(32))


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    rng = np.random.default_rng(0)
    for name, (width, height) in SIZES.items():
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(folder / f"{name}.png")
    save_wav(folder / "voice.wav", (0.2 * rng.standard_normal((2, 64_000))).astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def generator() -> Generator:
    loaded = Generator.from_pretrained("demo-random", device="cpu", partition="both")
    return Generator(loaded.engine, Ingest(RULES))


def keyframe(media: Path, name: str, index: int) -> dict[str, Any]:
    return {"type": "image", "role": "keyframe", "frame_index": index, "uri": str(media / f"{name}.png")}


def picture(media: Path, name: str) -> dict[str, Any]:
    return {"type": "image", "role": "reference", "uri": str(media / f"{name}.png")}


def voice(media: Path) -> dict[str, Any]:
    return {"type": "audio", "role": "reference", "uri": str(media / "voice.wav")}


def body(*conditions: dict[str, Any], **more: Any) -> dict[str, Any]:
    task = "ref2va" if any(c["role"] == "reference" for c in conditions) else "fl2va"
    fields = {"task": task, "prompt": "x", "target": TARGET, "num_inference_steps": 1, "conditions": list(conditions)}
    return {**fields, **more}


def stretched(media: Path, name: str, size: tuple[int, int] = CANVAS) -> Any:
    return np.asarray(Image.open(media / f"{name}.png").resize(size, Image.Resampling.LANCZOS))


def covering(media: Path, name: str) -> Any:
    """130x90 over 96x64: scale max(96/130, 64/90) = 0.7385, 96x66, one row off above and below."""
    assert SIZES[name] == (130, 90)
    return np.asarray(Image.open(media / f"{name}.png").resize((96, 66), Image.Resampling.LANCZOS))[1:65]


def read(*conditions: dict[str, Any], rules: SizeRules = RULES, **more: Any) -> Any:
    return Ingest(rules).read(parse_request(body(*conditions, **more)))


# --- which picture, at which size -----------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, -1])
def test_a_lone_keyframe_is_stretched_wherever_it_stands(media: Path, index: int) -> None:
    _, (item,) = read(keyframe(media, "two", index))
    assert np.array_equal(item.frames[0], stretched(media, "two"))
    assert item.segment.is_last is (index == -1)


def test_the_second_keyframe_is_cropped(media: Path) -> None:
    plan, (first, last) = read(keyframe(media, "one", 0), keyframe(media, "two", -1))
    assert np.array_equal(first.frames[0], stretched(media, "one")) and not first.segment.is_last
    assert np.array_equal(last.frames[0], covering(media, "two")) and last.segment.is_last
    assert [s.is_last for s in plan.conditions] == [False, True]


@pytest.mark.parametrize("index", [0, -1])
def test_a_keyframe_named_after_references_goes_before_them(media: Path, index: int) -> None:
    """It is the first keyframe though not the first condition: stretched, and packed in front."""
    plan, prepared = read(picture(media, "three"), voice(media), keyframe(media, "two", index), picture(media, "one"))
    assert [p.segment.kind for p in prepared] == ["keyframe", "image", "audio", "image"]
    assert [s.kind for s in plan.conditions] == ["keyframe", "image", "audio", "image"]
    assert np.array_equal(prepared[0].frames[0], stretched(media, "two"))
    assert prepared[0].segment.is_last is (index == -1)
    assert np.array_equal(prepared[1].frames[0], stretched(media, "three", (64, 64)))
    assert np.array_equal(prepared[3].frames[0], stretched(media, "one", (96, 64)))


@pytest.mark.parametrize(
    ("mode", "size", "expected"),
    [
        # The rule is 128 px here, the canvas 96x64 = 6144 px.
        ("diffusers", (256, 256), (128, 128)),
        ("max", (256, 256), (128, 128)),
        ("match", (256, 256), (64, 64)),  # times sqrt(6144 / 65536) = 0.306: 78.4, nearest 32
        ("diffusers", (64, 64), (128, 128)),
        ("max", (64, 64), (64, 64)),
        ("match", (64, 64), (64, 64)),
        (None, (64, 64), (128, 128)),
    ],
)
def test_resize_mode_of_references(mode: str | None, size: Any, expected: Any, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    more = {} if mode is None else {"reference_resize_mode": mode}
    rules = SizeRules(max_canvas_area=8192, picture_short_edge=128, clip_short_edge=64)
    _, (item,) = read(picture(tmp_path, "a"), rules=rules, **more)
    plan = Ingest(rules).plan(parse_request(body(picture(tmp_path, "a"), **more)))  # what `h3serve plan` shows
    assert np.array_equal(item.frames[0], stretched(tmp_path, "a", expected))
    assert item.segment.size == plan.conditions[0].size == expected
    assert plan.condition_rows == expected[0] * expected[1] // 1024


# --- where the rows lie -------------------------------------------------------------------------------


def made(generator: Generator, fields: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a generation until its first evaluation, before which it is cancelled."""

    def stop(progress: Progress) -> None:
        if progress.stage == "denoise":
            raise Cancelled("enough")

    request, kept = parse_request(fields), Intermediates.of(GROUPS)
    plan, prepared = generator.ingest.read(request)
    with pytest.raises(Cancelled):
        generator.run(request, plan, prepared, meter=Meter(generator.engine.peaks, stop), noise={}, kept=kept)
    return kept.arrays


def starts(kept: dict[str, Any]) -> Any:
    """(text length, times of all rows after the text)."""
    length = len(kept["text_indices"])
    return length, kept["position_ids"][length:, 0] - length


def test_a_lone_last_frame_lies_at_the_end(generator: Generator, media: Path) -> None:
    _, times = starts(made(generator, body(keyframe(media, "two", -1))))
    assert times[:6] == pytest.approx([SPAN - 5 / 3] * 6)
    assert times[6] == 0  # the target's sound, and so its picture, begin at the text's end
    _, times = starts(made(generator, body(keyframe(media, "two", 0))))
    assert (times[:6] == 0).all()


@pytest.mark.parametrize(("index", "anchor"), [(0, 0.0), (-1, SPAN - 5 / 3)])
def test_hybrid_rows(generator: Generator, media: Path, index: int, anchor: float) -> None:
    """Two references of 4 and of 160 rows move the clock by 1 and by 80; the keyframe's six rows stand in front."""
    request = body(picture(media, "three"), voice(media), keyframe(media, "two", index))
    kept = made(generator, request)
    length, times = starts(kept)
    assert times[:6] == pytest.approx([81 + anchor] * 6)
    assert (times[6:10] == 0).all() and times[10:170] == pytest.approx(np.tile(1 + np.arange(80.0), 2))
    assert times[170] == 81
    assert kept["video_indices"][:10].tolist() == list(range(length, length + 10))
    assert kept["audio_indices"][:160].tolist() == list(range(length + 10, length + 170))
    assert (kept["token_tags"][length:][:10] == 0).all() and (kept["token_tags"][length:][10:170] == 2).all()
    assert kept["condition_latents0"].shape[-2:] == (4, 6) and kept["condition_latents1"].shape[-2:] == (4, 4)


# --- noise ----------------------------------------------------------------------------------------------


def fresh(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("levels", [None, (0.25, 0.75)])
def test_noise_of_conditions(
    generator: Generator, media: Path, levels: tuple[float, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """level * clean + (1 - level) * noise: of two visual conditions the first frames of 32 + 2, of sounds seed + 1."""
    rows: list[Any] = []
    encode = generator_module.encode_conditions

    def watched(*arguments: Any, **options: Any) -> Any:
        rows.append(encode(*arguments, **options))
        return rows[0]

    monkeypatch.setattr(generator_module, "encode_conditions", watched)
    names = ("imgvid_cond_noise_aug_for_inference", "audio_cond_noise_aug_for_inference")
    more = {} if levels is None else dict(zip(names, levels, strict=True))
    request = body(keyframe(media, "two", 0), picture(media, "three"), voice(media), seed=5, **more)
    kept = made(generator, request)
    visual, heard = levels or (float(np.float32(0.999)), 1.0)
    expected = []
    for number, (height, width) in enumerate([(4, 6), (4, 4)]):
        noise = fresh(5, 1, 24, 34, height, width)[:, :, :1]
        mixed = visual * torch.as_tensor(kept[f"condition_latents{number}"]) + (1 - visual) * noise
        patches = mixed.reshape(24, height // 2, 2, width // 2, 2).permute(1, 3, 0, 2, 4)
        expected.append(patches.reshape(-1, 96))
        assert torch.equal(torch.as_tensor(kept[f"noise_posterior{number}"]), fresh(42, 1, 24, 1, height, width))
    torch.testing.assert_close(rows[0].video.cpu(), torch.cat(expected), rtol=0, atol=1e-6)
    clean = torch.as_tensor(kept["condition_audio0"])
    torch.testing.assert_close(rows[0].audio.cpu(), heard * clean + (1 - heard) * fresh(6, 160, 32), rtol=0, atol=1e-6)
    assert torch.equal(torch.as_tensor(kept["noise_video"]), fresh(5, 1, 24, 32, 4, 6))
    assert torch.equal(torch.as_tensor(kept["noise_audio"]), fresh(5, 356, 32))
