"""A request from a file and/or flags: flags win over the file; relative paths are relative to the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from h3serve.core.errors import RequestError
from h3serve.core.limits import DEFAULT_SHORT_EDGE, LIMITS
from h3serve.core.request import GenerationRequest, parse_request
from h3serve.core.settings import option
from h3serve.media.read.carried_request import carried_request

RequestFile = Annotated[Path | None, typer.Argument(help="A request as JSON (the HTTP body).", show_default=False)]
SECONDS = 5.0  # of a video that is asked for by flags alone
_FIELDS = ("task", "prompt", "num_inference_steps", "seed", "solver")
_TARGET = ("short_edge", "aspect_ratio", "duration_seconds")


@dataclass(frozen=True)
class RequestFlags:
    """What flags say of a request, by its field names; None where a flag was not given."""

    task: str | None = option(None, "t2va, fl2va or ref2va; follows from the media if left out.")
    from_video: str | None = option(
        None, "MP4 that carries its request, to be made again; other flags win over it.", flag="--from"
    )
    prompt: str | None = option(None, "What to show and to sound like.")
    first_frame: str | None = option(None, "Image for the first frame.")
    last_frame: str | None = option(None, "Image for the last frame.")
    references: tuple[str, ...] = option(
        (), "Reference image, video or audio, in order; KIND=URI names the kind. Repeatable.", flag="--reference"
    )
    short_edge: int | None = option(None, f"Short edge in pixels; {DEFAULT_SHORT_EDGE} is recommended.")
    aspect_ratio: str | None = option(None, "auto or W:H.")
    duration_seconds: float | None = option(
        None,
        f"Seconds, {LIMITS.min_seconds:g} to {LIMITS.max_seconds:g}; "
        f"without a request file {SECONDS:g}, but for references.",
        flag="--duration",
    )
    num_inference_steps: int | None = option(None, "Model evaluations.", flag="--steps")
    seed: int | None = option(None, "0 to 2^63-1.")
    solver: str | None = option(None, "euler, or multistep: second order, for 10 to 25 evaluations.")
    loras: tuple[str, ...] = option(
        (),
        "Adapter (LoRA) for this video: its file, or its name in --adapter-folder; or NAME=STRENGTH. Repeatable.",
        flag="--lora",
    )

    def given(self, names: Sequence[str]) -> dict[str, Any]:
        """The fields among `names` that were given."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def conditions(self) -> list[dict[str, Any]]:
        """Keyframes and references as a request's conditions; of a reference without a kind, its file is looked at."""
        keyframes = {0: self.first_frame, -1: self.last_frame}
        placed = [_keyframe(uri, index) for index, uri in keyframes.items() if uri is not None]
        return [*placed, *map(_reference, self.references)]


def build_request(file: Path | None, flags: RequestFlags) -> GenerationRequest:
    """The request in `file`, overridden by the flags that were given; the task follows from the media.

    Without a file a video lasts `SECONDS`, unless a reference's audio may decide it. Raises RequestError.
    """
    if file is not None and flags.from_video is not None:
        raise RequestError("--from", flags.from_video, f"not beside a request file, {file}")
    body = _read_body(file) if flags.from_video is None else _of_video(flags)
    added, target = flags.conditions, body.get("target")
    merged = {**body, **flags.given(_FIELDS)}
    sizes = {**(target if isinstance(target, dict) else {}), **flags.given(_TARGET)}
    if added:
        merged["conditions"] = _starts(added, body.get("conditions")) if flags.from_video else added
    if flags.loras:
        merged.pop("loras", None)
        merged["adapters"] = [{"name": name, "strength": s} for name, s in map(with_strength, flags.loras)]
    merged.setdefault("task", _task(added))
    if not body and merged["task"] != "ref2va":
        sizes.setdefault("duration_seconds", SECONDS)
    if sizes:
        merged["target"] = sizes
    return parse_request(merged)


def _of_video(flags: RequestFlags) -> dict[str, Any]:
    """The request that the MP4 of `--from` carries. RequestError where it has media, and no flag names any."""
    assert flags.from_video is not None
    from h3serve.media.sources.open_source import open_source

    with open_source(flags.from_video, field="--from") as file:
        body = carried_request(file)
    had = [f"{c.get('role')} {c.get('type')}" for c in body.get("conditions", ())]
    if had and not flags.conditions:
        allowed = f"it was made with media that it does not hold ({', '.join(had)}): name them again by their flags"
        raise RequestError("--from", flags.from_video, allowed)
    return body


def _starts(added: list[dict[str, Any]], carried: Any) -> list[dict[str, Any]]:
    """Media that are named again begin where they began, if they are of the same kinds in the same order."""

    def kinds(conditions: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        return [(c.get("type"), c.get("role"), c.get("frame_index")) for c in conditions]

    if not carried or kinds(added) != kinds(carried):
        return added
    starts = [{k: v for k, v in c.items() if k == "start_time_seconds"} for c in carried]
    return [{**condition, **start} for condition, start in zip(added, starts, strict=True)]


def with_strength(given: str) -> tuple[str, float]:
    """An adapter's name, and what stands behind its last = if that is a number; else 1."""
    name, _, strength = given.rpartition("=")
    try:
        return (name, float(strength)) if name else (given, 1.0)
    except ValueError:
        return given, 1.0


def _read_body(path: Path | None) -> dict[str, Any]:
    """The JSON object in `path` with file references made absolute, or an empty one."""
    if path is None:
        return {}
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError("request file", str(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RequestError("request file", str(path), f"must be JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError("request file", str(path), "must hold one JSON object")
    conditions = body.get("conditions")
    if isinstance(conditions, list):
        body["conditions"] = [_beside(c, path.parent, "uri") for c in conditions]
    for field in ("adapters", "loras"):
        if isinstance(adapters := body.get(field), list):
            body[field] = [_beside(a, path.parent, "name", only_files=True) for a in adapters]
    return body


def _keyframe(uri: str, index: int) -> dict[str, Any]:
    return {"type": "image", "role": "keyframe", "frame_index": index, "uri": uri}


def _reference(text: str) -> dict[str, Any]:
    """`image.png`, whose kind is looked up in the file, or `video=https://...`."""
    kind, equals, uri = text.partition("=")
    if not (equals and kind in ("image", "video", "video_audio", "audio")):
        from h3serve.media.read.probe import probe_media  # they bring decoders
        from h3serve.media.sources.open_source import open_source

        uri = text
        with open_source(uri, field="--reference") as file:
            kind = probe_media(file).kind
    return {"type": kind, "role": "reference", "uri": uri}


def _task(conditions: Sequence[Mapping[str, Any]]) -> str:
    roles = {c["role"] for c in conditions}
    return "ref2va" if "reference" in roles else "fl2va" if roles else "t2va"


def _beside(item: Any, folder: Path, member: str, *, only_files: bool = False) -> Any:
    """Plain relative paths are taken from the request file's folder; with `only_files` what is no path stays a name."""
    if not isinstance(item, dict) or not isinstance(item.get(member), str):
        return item
    path = item[member]
    if not path or ":" in path.split("/", 1)[0] or Path(path).is_absolute():
        return item
    return item if only_files and not (folder / path).is_file() else {**item, member: str(folder / path)}
