"""Row counts and sizes of spec/packing.md 3.6, and what media make impossible."""

from typing import Any

import pytest

from h3serve.core.errors import RequestError
from h3serve.core.geometry import SizeRules
from h3serve.core.media_probe import MediaProbe
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request

WIDE = MediaProbe("image", 1920, 1080)
CLIP = MediaProbe("video", 1344, 768, 124 / 24, 24.0, True, 165334 / 32000)
SILENT = MediaProbe("video", 1344, 768, 124 / 24, 24.0)
EIGHT = MediaProbe("audio", seconds=8, has_audio=True, audio_seconds=8)
SOUND = MediaProbe("audio", seconds=3.0, has_audio=True, audio_seconds=3.0)


def condition(kind: str, **changes: Any) -> dict[str, Any]:
    return {"type": kind, "uri": "x", "role": "reference", **changes}


def keyframe(index: int) -> dict[str, Any]:
    return {"type": "image", "uri": "x", "role": "keyframe", "frame_index": index}


def resolve(task: str, seconds: float | None, conditions: list[Any] = (), probes: Any = (), **options: Any) -> Plan:  # type: ignore[assignment]
    target = {"duration_seconds": seconds, "aspect_ratio": options.pop("ratio", "auto")}
    request = parse_request({"task": task, "prompt": "x", "conditions": list(conditions), "target": target})
    return Plan.resolve(request, probes, **options)


@pytest.mark.parametrize(
    ("seconds", "text", "audio", "video", "used"),
    [
        (4, 100, 356, 32_256, 32_712),
        (5, 300, 414, 37_296, 38_010),
        (10, 700, 810, 72_576, 74_086),
        (15, 700, 1206, 107_856, 109_762),
    ],
)
def test_t2va_rows(seconds: float, text: int, audio: int, video: int, used: int) -> None:
    plan = resolve("t2va", seconds, prompt_tokens=text)
    assert plan.canvas == (1344, 768) and plan.text_is_exact
    assert (plan.target.audio_rows, plan.target.video_rows, plan.rows) == (audio, video, used)


@pytest.mark.parametrize(("indices", "conditions"), [([0], 1008), ([-1], 1008), ([0, -1], 2016)])
def test_fl2va_rows(indices: list[int], conditions: int) -> None:
    plan = resolve("fl2va", 5, [keyframe(i) for i in indices], [WIDE] * len(indices), prompt_tokens=284)
    assert plan.condition_rows == conditions
    assert abs(plan.text_tokens - (300 + conditions)) < 20
    assert plan.rows == plan.text_tokens + conditions + 414 + 37_296


def test_ref2va_rows() -> None:
    plan = resolve("ref2va", 5, [condition("video"), condition("audio")], [CLIP, SOUND], prompt_tokens=0)
    assert [(s.audio_rows, s.video_rows) for s in plan.conditions] == [(414, 37_296), (240, 0)]
    assert plan.rows - plan.text_tokens == 75_660


def test_auto_canvas_follows_the_first_keyframe() -> None:
    tall = MediaProbe("image", 736, 992)
    assert resolve("fl2va", 5, [keyframe(0)], [tall]).canvas == (768, 1024)
    assert resolve("fl2va", 5, [keyframe(0)], [tall], ratio="16:9").canvas == (1344, 768)
    assert resolve("fl2va", 5, [keyframe(0), keyframe(-1)], [tall, WIDE]).canvas == (768, 1024)
    assert resolve("ref2va", 5, [condition("image")], [tall]).canvas == (1344, 768)


def test_duration_from_the_one_sound() -> None:
    six = MediaProbe("audio", seconds=6.0, has_audio=True, audio_seconds=6.0)
    assert resolve("ref2va", None, [condition("image"), condition("audio")], [WIDE, six]).frames == 158
    with pytest.raises(RequestError, match=r"conditions\[1\].*3.00 s"):
        resolve("ref2va", None, [condition("image"), condition("audio")], [WIDE, SOUND])
    with pytest.raises(RequestError, match="no audio"):
        resolve("ref2va", None, [condition("video")], [SILENT])


@pytest.mark.parametrize(
    ("conditions", "probes", "field"),
    [
        ([condition("image")], [CLIP], "conditions[0].type"),
        ([condition("video")], [WIDE], "conditions[0].type"),
        ([condition("video_audio")], [SILENT], "conditions[0].type"),
        ([condition("image"), condition("audio")], [WIDE, SILENT], "conditions[1].type"),
        ([condition("image")], [MediaProbe("image", 500, 100)], "conditions[0]"),
        ([condition("video")], [MediaProbe("video", 64, 64, 1.9)], "conditions[0]"),
        ([condition("video")], [MediaProbe("video", 64, 64, 16.0)], "conditions[0]"),
        ([condition("video")] * 2, [MediaProbe("video", 64, 64, 8.0)] * 2, "conditions"),
        ([condition("image")] + [condition("audio")] * 2, [WIDE, EIGHT, EIGHT], "conditions"),
        ([condition("video", start_time_seconds=6.0)], [CLIP], "conditions[0].start_time_seconds"),
        ([condition("video", start_time_seconds=4.0)], [CLIP], "conditions[0]"),
    ],
)  # fmt: skip
def test_media_that_do_not_fit(conditions: list[Any], probes: list[MediaProbe], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        resolve("ref2va", 5, conditions, probes)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("seconds", "frames"),
    [(4.4833, 124), (4.47, 107), (4.0, 107), (5.1666, 124), (5.19, 141), (15.0, 362)],
)
def test_seconds_become_the_nearest_frame_then_the_next_17n_plus_5(seconds: float, frames: int) -> None:
    """4.4833 s are 107.6 frames: 108, and 107 no longer hold them; 4.47 s are 107.3: 107."""
    assert resolve("t2va", seconds).frames == frames


@pytest.mark.parametrize(("seconds", "latents"), [(5.15, 37), (5.14, 32), (2.9, 17), (2.32, 17), (2.31, 12)])
def test_a_reference_video_has_its_nearest_number_of_frames(seconds: float, latents: int) -> None:
    """The largest 17k+5 in them: 123.6 frames count as 124, 123.4 as 123, which hold 107 = 32 latents."""
    plan = resolve("ref2va", 8, [condition("video")], [MediaProbe("video", 1344, 768, seconds, 24.0)])
    assert plan.conditions[0].latent_frames == latents


@pytest.mark.parametrize(("frames", "sampled"), [(144.6 / 24, 13), (144.4 / 24, 12)])
def test_a_reference_video_is_shown_in_pairs_of_its_frames(frames: float, sampled: int) -> None:
    """Every 12th frame is shown: 13 of 145, in 7 blocks, 12 of 144, in 6; a block has 1008 + 2 tokens and its time."""
    probe = MediaProbe("video", 1344, 768, frames, 24.0)
    tokens = resolve("ref2va", 8, [condition("video")], [probe], prompt_tokens=0).text_tokens
    assert tokens // 1010 == -(-sampled // 2)


@pytest.mark.parametrize(("seconds", "start", "frames"), [(4.0, None, 107), (15.0, None, 362), (6.1, 2.1, 107)])
def test_audio_of_exactly_4_and_15_s_sets_the_length(seconds: float, start: float | None, frames: int) -> None:
    probe = MediaProbe("video", 1344, 768, seconds, 24.0, True, seconds)
    kind = condition("audio") if start is None else condition("video_audio", start_time_seconds=start)
    assert resolve("ref2va", None, [condition("image"), kind], [WIDE, probe]).frames == frames


@pytest.mark.parametrize("seconds", [3.999, 15.001])
def test_audio_beyond_4_and_15_s_sets_none(seconds: float) -> None:
    probe = MediaProbe("audio", seconds=seconds, has_audio=True, audio_seconds=seconds)
    with pytest.raises(RequestError, match="4 to 15 s"):
        resolve("ref2va", None, [condition("image"), condition("audio")], [WIDE, probe])


@pytest.mark.parametrize(("start", "latents"), [(None, 207), (2.0, 127), (3.0, 87)])
def test_start_time_is_that_of_the_audio_too(start: float | None, latents: int) -> None:
    """40 latents a second of what is left of 165,334 samples at 32 kHz, rounded up."""
    changes = {} if start is None else {"start_time_seconds": start}
    plan = resolve("ref2va", 8, [condition("video_audio", **changes)], [CLIP])
    assert plan.conditions[0].audio_latents == latents


def sound_of_a_video(sound: float, picture: float) -> MediaProbe:
    return MediaProbe("video", 1344, 768, picture, 24.0, True, sound)


def test_audio_taken_from_a_video_is_as_long_as_its_audio() -> None:
    audio = condition("audio")
    plan = resolve("ref2va", 5, [condition("image"), audio], [WIDE, sound_of_a_video(5.0, 60.0)])
    assert plan.conditions[1].audio_latents == 200  # 40 a second
    with pytest.raises(RequestError, match="^conditions: '42.00 s of audio'"):
        resolve("ref2va", 5, [condition("image")] + [audio] * 3, [WIDE] + [sound_of_a_video(14.0, 3.0)] * 3)
    with pytest.raises(RequestError, match=r"^conditions\[1\]: '60.00 s'"):
        resolve("ref2va", 5, [condition("image"), audio], [WIDE, sound_of_a_video(60.0, 5.0)])


def test_start_time_cuts_a_long_clip() -> None:
    long = MediaProbe("video", 1344, 768, 60.0, 24.0)
    plan = resolve("ref2va", 5, [condition("video", start_time_seconds=30.0)], [long])
    assert plan.conditions[0].latent_frames == 37  # cut to the target's 124 frames


def test_small_size_rules() -> None:
    rules = SizeRules(8192, 64, 64)
    plan = resolve("ref2va", 5, [condition("image"), condition("video")], [WIDE, CLIP], rules=rules)
    assert plan.canvas == (128, 64)
    assert [s.size for s in plan.conditions] == [(128, 64), (128, 64)]


def test_describe_is_json_ready() -> None:
    import json

    shown = resolve("t2va", 4, prompt_tokens=100).describe()
    assert json.loads(json.dumps(shown)) == shown
    assert shown["frames"] == 107 and shown["rows"]["total"] == 32_712
    assert shown["petaflops"] == pytest.approx(50 * 2.80, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "probe", "advice"),
    [
        ("video", MediaProbe("video", 64, 64, 20.0, 24.0), "start_time_seconds names where"),
        ("audio", MediaProbe("audio", seconds=20.0, has_audio=True, audio_seconds=20.0), "cut out the part"),
        ("video", MediaProbe("video", 64, 64, 0.5, 24.0, skipped_seconds=2.125), r"first 2\.12 s cannot be decoded"),
        ("image", MediaProbe("video", 64, 64, 3.0), "save the one frame that is meant"),
    ],
)
def test_what_would_help_is_said(kind: str, probe: MediaProbe, advice: str) -> None:
    references = [condition("image"), condition(kind)]
    with pytest.raises(RequestError, match=advice):
        resolve("ref2va", 5, references, [MediaProbe("image", 64, 64), probe])
