"""Arrays to pictures that live inside a page: frames, difference maps, waveforms, spectrograms, trends."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from h3serve.guard.audio_metrics import SPECTRUM_DEPTH_DB, spectrogram_db
from h3serve.guard.image_metrics import Frame
from h3serve.guard.pcm import Wave

FRAME_WIDTH = 360  # pixels; larger frames are shrunk for the page
DIFFERENCE_GAIN = 8
WAVE_WIDTH, WAVE_HEIGHT = 480, 64  # of one channel
SPECTROGRAM_SIZE = (480, 128)
TREND_WIDTH, TREND_HEIGHT = 120, 24

# Dark to bright, distinguishable in grey: 0, 1/4, 1/2, 3/4, 1.
_HEAT = np.array([(10, 8, 32), (74, 28, 106), (168, 54, 84), (236, 122, 40), (252, 240, 164)], float)


def frame_uri(frame: Frame) -> str:
    """A uint8 [H,W,3] frame as a PNG data URI, at most 360 pixels wide."""
    picture = Image.fromarray(frame)
    if picture.width > FRAME_WIDTH:
        picture = picture.resize((FRAME_WIDTH, round(picture.height * FRAME_WIDTH / picture.width)))
    return _png(picture)


def difference_uri(truth: Frame, frame: Frame) -> str:
    """Mean absolute difference per pixel, eight times as strong, as heat."""
    difference = np.abs(truth.astype(np.int16) - frame).mean(axis=2)
    return frame_uri(_heat(np.clip(difference * DIFFERENCE_GAIN / 255, 0, 1)))


def spectrogram_uri(mono: Wave, loudest_db: float) -> str:
    """Low tones at the bottom; from 60 dB under `loudest_db` to it."""
    level = (spectrogram_db(mono)[::-1] - loudest_db) / SPECTRUM_DEPTH_DB + 1
    return _png(Image.fromarray(_heat(np.clip(level, 0, 1))).resize(SPECTROGRAM_SIZE))


def waveform_svg(pcm: Wave, style: str) -> str:
    """Envelopes of [channels, n], one band per channel under the other, full scale each."""
    height = WAVE_HEIGHT * len(pcm)
    bands = "".join(_band(channel, WAVE_HEIGHT * (i + 0.5)) for i, channel in enumerate(pcm))
    return f'<svg class="wave {style}" viewBox="0 0 {WAVE_WIDTH} {height}" role="img">{bands}</svg>'


def trend_svg(values: Sequence[float], limit: float) -> str:
    """A small line over the runs, oldest left, with the limit as a dashed line."""
    low, high = min(*values, limit), max(*values, limit)
    span = (high - low) or 1.0

    def y(value: float) -> float:
        return round(TREND_HEIGHT - 3 - (value - low) / span * (TREND_HEIGHT - 6), 1)

    step = TREND_WIDTH / max(1, len(values) - 1)
    points = " ".join(f"{round(i * step, 1)},{y(value)}" for i, value in enumerate(values))
    return (
        f'<svg class="trend" viewBox="0 0 {TREND_WIDTH} {TREND_HEIGHT}" role="img">'
        f'<line x1="0" x2="{TREND_WIDTH}" y1="{y(limit)}" y2="{y(limit)}"/><polyline points="{points}"/>'
        f'<circle cx="{round((len(values) - 1) * step, 1)}" cy="{y(values[-1])}" r="2.5"/></svg>'
    )


def _band(channel: Wave, middle: float) -> str:
    edges = np.linspace(0, len(channel), WAVE_WIDTH + 1).astype(int)[:-1]
    if not len(channel):
        return ""
    tops, bottoms = np.maximum.reduceat(channel, edges), np.minimum.reduceat(channel, edges)
    half = WAVE_HEIGHT / 2 - 2
    upper = [f"{x},{middle - half * float(np.clip(v, -1, 1)):.1f}" for x, v in enumerate(tops)]
    lower = [f"{x},{middle - half * float(np.clip(v, -1, 1)):.1f}" for x, v in enumerate(bottoms)]
    outline = " ".join(upper + lower[::-1])
    return f'<line x1="0" x2="{WAVE_WIDTH}" y1="{middle}" y2="{middle}"/><polygon points="{outline}"/>'


def _heat(share: np.ndarray[Any, Any]) -> Frame:
    stops = np.linspace(0, 1, len(_HEAT))
    channels = [np.interp(share, stops, _HEAT[:, c]) for c in range(3)]
    return np.stack(channels, axis=-1).astype(np.uint8)


def _png(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
