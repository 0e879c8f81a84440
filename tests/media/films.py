"""Small pictures and films whose pixels say what they are: coloured corners and counters."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np

CORNERS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "yellow": (255, 255, 0)}


def quadrants(width: int, height: int) -> np.ndarray:
    """uint8 [h, w, 3]: red and green above, blue and yellow below."""
    out = np.zeros((height, width, 3), np.uint8)
    halves = [slice(None, height // 2), slice(height // 2, None)], [slice(None, width // 2), slice(width // 2, None)]
    for colour, (row, column) in zip(CORNERS.values(), [(0, 0), (0, 1), (1, 0), (1, 1)], strict=True):
        out[halves[0][row], halves[1][column]] = colour
    return out


def corners(pixels: np.ndarray) -> str:
    """First letters of the four quadrants' colours, left to right and top to bottom: 'rgby' if upright."""
    height, width = pixels.shape[:2]
    points = [(y, x) for y in (height // 4, 3 * height // 4) for x in (width // 4, 3 * width // 4)]
    return "".join(_name(pixels[point].astype(int)) for point in points)


def _name(colour: np.ndarray) -> str:
    return min(CORNERS, key=lambda name: int(np.abs(colour - CORNERS[name]).sum()))[0]


def counter(index: int, width: int = 64, height: int = 32) -> np.ndarray:
    """uint8 [h, w, 3]: eight black or white columns, the bits of `index`."""
    bits = [(index >> bit) & 1 for bit in range(8)]
    row = np.repeat(np.array(bits, np.uint8) * 255, width // 8)
    return np.broadcast_to(row[None, :, None], (height, width, 3)).copy()


def count(pixels: np.ndarray) -> int:
    """The index that `counter` drew."""
    columns = np.array_split(pixels, 8, axis=1)
    return sum(int(c.mean() > 127) << bit for bit, c in enumerate(columns))


def counts(frames: np.ndarray) -> list[int]:
    return [count(f) for f in frames]


def film(
    path: Path,
    pictures: Sequence[np.ndarray],
    times: Sequence[Fraction] | None = None,
    *,
    rate: Fraction | int = 24,
    codec: str = "libx264",
    sound: np.ndarray | None = None,
    **how: object,
) -> Path:
    """A film of `pictures` shown at `times` (default: at `rate`); `sound` is float32 [2, n] at 32 kHz.

    `how`: rotation=(degrees, hflip, vflip), aspect=pixel aspect, sound_start=seconds, format=container,
    pix_fmt, options.
    """
    times = times or [i / Fraction(rate) for i in range(len(pictures))]
    ticks = 90_000 if path.suffix != ".avi" else int(rate)
    with av.open(str(path), "w", format=how.get("format")) as box:
        video = box.add_stream(codec, rate=rate)
        video.height, video.width = pictures[0].shape[:2]
        video.pix_fmt = how.get("pix_fmt", "yuv420p")
        video.options = how.get("options", {"crf": "8", "bf": "2"})
        video.codec_context.time_base = Fraction(1, ticks)
        if "aspect" in how:
            video.codec_context.sample_aspect_ratio = how["aspect"]
        if "rotation" in how:
            degrees, hflip, vflip = how["rotation"]
            video.set_display_rotation(degrees, hflip=hflip, vflip=vflip)
        audio = box.add_stream("aac", rate=32_000, layout="stereo") if sound is not None else None
        gaps = [b - a for a, b in pairwise(times)] or [1 / Fraction(rate)]
        for pixels, time, gap in zip(pictures, times, [*gaps, gaps[-1]], strict=False):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=video.pix_fmt)
            frame.pts, frame.time_base = round(time * ticks), Fraction(1, ticks)
            frame.duration = round(gap * ticks)
            box.mux(video.encode(frame))
        box.mux(video.encode(None))
        if sound is not None:
            frame = av.AudioFrame.from_ndarray(sound, "fltp", "stereo")
            frame.sample_rate, frame.time_base = 32_000, Fraction(1, 32_000)
            frame.pts = round(float(how.get("sound_start", 0)) * 32_000)
            box.mux(audio.encode(frame))
            box.mux(audio.encode(None))
    return path


def tone(seconds: float, hertz: float = 440.0) -> np.ndarray:
    """float32 [2, n] at 32 kHz."""
    time = np.arange(round(seconds * 32_000)) / 32_000
    return np.repeat(0.3 * np.sin(2 * np.pi * hertz * time)[None], 2, axis=0).astype(np.float32)
