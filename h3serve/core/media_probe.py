"""What is known of a media file before it is decoded, and what the published limits ask of it
(spec/tasks_and_validation.md 8.3).

Lengths: every video and audio reference 2-15 s, all videos together and all audio together at most 15 s. With
`start_time_seconds` only the part from there on counts, and what the target cannot hold is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from h3serve.core import geometry
from h3serve.core.errors import MediaError, RequestError
from h3serve.core.limits import LIMITS, Limits
from h3serve.core.request import GenerationRequest
from h3serve.core.request_values import Condition

MediaKind = Literal["image", "video", "audio"]


@dataclass(frozen=True)
class MediaProbe:
    """One image, video or audio file as a viewer meets it: rotation and pixel aspect are already applied.

    `width`, `height` are display pixels (0 for audio); `seconds` is the length of the video stream, or of
    the audio where there is no video (0 for an image); `audio_seconds` the length of its audio.
    """

    kind: MediaKind
    width: int = 0
    height: int = 0
    seconds: float = 0.0
    fps: float | None = None  # average, None where the container does not say
    has_audio: bool = False
    audio_seconds: float = 0.0
    num_bytes: int = 0
    skipped_seconds: float = 0.0  # at the beginning, left out: they lean on frames that were cut off

    @property
    def ratio(self) -> float:
        """Display width over height."""
        return self.width / self.height


_KIND_OF = {"image": "image", "video": "video", "video_audio": "video", "audio": "audio"}


def check_references(request: GenerationRequest, probes: Sequence[MediaProbe], limits: Limits) -> None:
    """Raises MediaError or RequestError naming the first condition that its file does not suit."""
    for index, (condition, probe) in enumerate(zip(request.conditions, probes, strict=True)):
        _check_kind(condition, probe, f"conditions[{index}]")
        if condition.role == "reference":
            _check_reference(condition, probe, f"conditions[{index}]", limits)
    for kind, name in (("video", "videos"), ("audio", "audio")):
        pairs = zip(request.references, _of_references(request, probes), strict=True)
        total = sum(seconds_used(c, p) for c, p in pairs if _KIND_OF[c.type] == kind)
        if total > limits.max_reference_seconds + limits.reference_slack_seconds:
            allowed = f"all reference {name} together last at most {limits.max_reference_seconds:g} s"
            raise RequestError("conditions", f"{total:.2f} s of {name}", allowed)


def seconds_used(condition: Condition, probe: MediaProbe) -> float:
    """Length of the part that may be used: all of it, or up to 15 s from the start time on.

    An audio reference is as long as its audio, whatever video the file holds beside it.
    """
    length = _length(condition, probe)
    if condition.start_time_seconds is None:
        return length
    return min(length - condition.start_time_seconds, LIMITS.max_reference_seconds)


def _length(condition: Condition, probe: MediaProbe) -> float:
    return probe.audio_seconds if condition.type == "audio" else probe.seconds


def _of_references(request: GenerationRequest, probes: Sequence[MediaProbe]) -> list[MediaProbe]:
    return [p for c, p in zip(request.conditions, probes, strict=True) if c.role == "reference"]


def _check_kind(condition: Condition, probe: MediaProbe, field: str) -> None:
    wanted = _KIND_OF[condition.type]
    if probe.kind != wanted and not (wanted == "audio" and probe.has_audio):
        meant = "; save the one frame that is meant as an image" if (wanted, probe.kind) == ("image", "video") else ""
        raise MediaError(f"{field}.type", condition.type, f"the file is of kind {probe.kind}{meant}")
    if condition.type in ("audio", "video_audio") and not probe.has_audio:
        raise MediaError(f"{field}.type", condition.type, "the file has no audio")


def _check_reference(condition: Condition, probe: MediaProbe, field: str, limits: Limits) -> None:
    if condition.is_visual:
        geometry.check_ratio(probe.ratio, f"{probe.width}x{probe.height}", field)
    if condition.type == "image":
        return
    start = condition.start_time_seconds
    length = _length(condition, probe)
    audio_ends = condition.type == "video_audio" and start is not None and start >= probe.audio_seconds
    if start is not None and (start >= length or audio_ends):
        raise RequestError(f"{field}.start_time_seconds", start, f"below the length, {length:.2f} s")
    used = length - (start or 0.0)
    low, high = limits.min_reference_seconds, limits.max_reference_seconds
    too_long = start is None and used > high + limits.reference_slack_seconds
    if used < low - 1e-3 or too_long:
        allowed = f"a reference video or audio lasts {low:g} to {high:g} s{_remedy(condition, probe, too_long)}"
        raise MediaError(field, f"{used:.2f} s", allowed)
    if condition.type != "audio" and round(used * geometry.FPS) < limits.min_reference_frames:
        raise MediaError(
            field, f"{used:.2f} s", f"a video needs at least {limits.min_reference_frames} frames at 24 fps"
        )


def _remedy(condition: Condition, probe: MediaProbe, too_long: bool) -> str:
    """What would help, or why less is there than the file seems to hold."""
    if too_long and condition.is_visual:
        return "; start_time_seconds names where the part that is meant begins"
    if too_long:
        return "; cut out the part that is meant"
    if probe.skipped_seconds:
        return (
            f"; its first {probe.skipped_seconds:.2f} s cannot be decoded, since they lean on frames that were cut off"
        )
    return ""
