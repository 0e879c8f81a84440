"""The pictures, clips and sounds that shipped cases refer to as `sample:NAME`, drawn the same everywhere.

Integer arithmetic and lossless files only, so that every machine starts from the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from h3serve.core.errors import RequestError
from h3serve.core.request import GenerationRequest

PREFIX = "sample:"
CLIP_FRAMES, CLIP_FPS, CLIP_EDGE = 48, 24, 256
SOUND_RATE, SOUND_SECONDS = 32_000, 2

Array = np.ndarray[Any, np.dtype[Any]]


def resolve(request: GenerationRequest, folder: Path) -> GenerationRequest:
    """`request` with each `sample:NAME` replaced by the path of that file, drawn into `folder`."""
    conditions = [
        condition.model_copy(update={"uri": str(draw(condition.uri.removeprefix(PREFIX), folder))})
        if condition.uri.startswith(PREFIX)
        else condition
        for condition in request.conditions
    ]
    return request.model_copy(update={"conditions": tuple(conditions)})


def draw(name: str, folder: Path) -> Path:
    """The path of sample `name` in `folder`; it is drawn if it is not there yet."""
    if name not in SAMPLES:
        raise RequestError("uri", PREFIX + name, f"one of {', '.join(PREFIX + known for known in SAMPLES)}")
    path = folder / name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        SAMPLES[name](path)
    return path


def picture(width: int, height: int, phase: int) -> Array:
    """uint8 [H,W,3]: diagonal colour ramps behind a disc, moved by `phase` pixels."""
    y, x = np.mgrid[:height, :width]
    ramps = [(x + 2 * phase) * 255 // width, (y + phase) * 255 // height, (x + y) * 127 // height]
    canvas = np.stack([ramp % 256 for ramp in ramps], axis=2)
    centre_x, centre_y, radius = width // 3 + phase, height // 2, min(width, height) // 4
    canvas[(x - centre_x) ** 2 + (y - centre_y) ** 2 < radius**2] = (240, 200, 40)
    return canvas.astype(np.uint8)


def tones(period: int) -> Array:
    """int16 [2, n] at 32 kHz: a triangle wave of `period` samples left, one a third longer right."""
    n = np.arange(SOUND_RATE * SOUND_SECONDS)
    envelope = 400 + 600 * (n // 4000 % 3)
    left, right = (np.abs(n % p * 40 // p - 20) - 10 for p in (period, period * 4 // 3))
    return np.stack([left, right // 2]).astype(np.int16) * envelope.astype(np.int16)


def _write_picture(path: Path, width: int, height: int, phase: int) -> None:
    Image.fromarray(picture(width, height, phase)).save(path)


def _write_sound(path: Path) -> None:
    with av.open(str(path), "w") as out:
        _encode_sound(out, out.add_stream("pcm_s16le", rate=SOUND_RATE, layout="stereo"), tones(200))


def _write_clip(path: Path) -> None:
    """FFV1 and PCM in Matroska: 2 s at 24 fps with sound."""
    with av.open(str(path), "w") as out:
        video = out.add_stream("ffv1", rate=CLIP_FPS)
        video.width = video.height = CLIP_EDGE
        video.pix_fmt = "bgr0"
        audio = out.add_stream("pcm_s16le", rate=SOUND_RATE, layout="stereo")
        for index in range(CLIP_FRAMES):
            frame = av.VideoFrame.from_ndarray(picture(CLIP_EDGE, CLIP_EDGE, index), format="rgb24")
            out.mux(video.encode(frame))
        out.mux(video.encode(None))
        _encode_sound(out, audio, tones(280))


def _encode_sound(out: av.container.OutputContainer, stream: av.AudioStream, samples: Array) -> None:
    packed = np.ascontiguousarray(samples.T).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(packed, format="s16", layout="stereo")
    frame.sample_rate = SOUND_RATE
    out.mux(stream.encode(frame))
    out.mux(stream.encode(None))


SAMPLES: dict[str, Callable[[Path], None]] = {
    "small-first.png": partial(_write_picture, width=96, height=64, phase=0),
    "small-last.png": partial(_write_picture, width=96, height=64, phase=24),
    "first.png": partial(_write_picture, width=1344, height=768, phase=0),
    "last.png": partial(_write_picture, width=1344, height=768, phase=300),
    "sound.wav": _write_sound,
    "clip.mkv": _write_clip,
}
