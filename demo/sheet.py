"""Contact sheets: frames, waveform, spectrogram and prompt of clips, as one PNG to look at.

python -m demo.sheet CLIP.npz [...] --out sheet.png [--text PROMPT]     # clips from `h3serve generate --out CLIP.npz`
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from h3serve.core.geometry import SAMPLE_RATE

Pixels = NDArray[np.uint8]
WIDTH, LINE = 1200, 13
SHOWN = 12  # frames of a clip
WAVE_HEIGHT, SPECTRUM_HEIGHT = 50, 80
TOP_HZ, DEPTH_DB = 6000.0, 70.0


def sheet(clips: Sequence[tuple[Pixels, NDArray[np.float32], str]], path: str | Path) -> None:
    """Writes a PNG of (video uint8 [F,H,W,3], audio float32 [2,n] at 32 kHz, text) below one another."""
    bands = [clip_band(*clip) for clip in clips]
    Image.fromarray(np.concatenate(bands)).save(path)


def clip_band(video: Pixels, audio: NDArray[np.float32], text: str) -> Pixels:
    """uint8 [h, WIDTH, 3]: text, frames evenly spaced in time, both channels, and their spectrogram."""
    parts = [_text(text), _strip(video), _wave(audio), _spectrogram(audio), np.full((6, WIDTH, 3), 255, np.uint8)]
    return np.concatenate(parts)


def _text(text: str) -> Pixels:
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, 190)]
    page = Image.new("RGB", (WIDTH, LINE * len(lines) + 3), "white")
    ImageDraw.Draw(page).multiline_text((2, 0), "\n".join(lines), fill="black", spacing=2)
    return np.asarray(page)


def _strip(video: Pixels) -> Pixels:
    chosen = video[np.linspace(0, len(video) - 1, min(SHOWN, len(video))).round().astype(int)]
    row = np.concatenate([np.pad(frame, ((0, 0), (0, 2), (0, 0)), constant_values=255) for frame in chosen], axis=1)
    height = max(1, round(row.shape[0] * WIDTH / row.shape[1]))
    return np.asarray(Image.fromarray(row).resize((WIDTH, height), Image.Resampling.NEAREST))


def _wave(audio: NDArray[np.float32]) -> Pixels:
    """Left above, right below; each column shows the loudest sample that falls on it."""
    page = np.full((2 * WAVE_HEIGHT, WIDTH, 3), 255, np.uint8)
    for number, channel in enumerate(audio):
        peaks = [np.abs(part).max() for part in np.array_split(channel, WIDTH)]
        half = np.round(np.clip(peaks, 0, 0.6) / 0.6 * (WAVE_HEIGHT // 2 - 1)).astype(int)
        distance = np.abs(np.arange(WAVE_HEIGHT)[:, None] - WAVE_HEIGHT // 2)
        page[number * WAVE_HEIGHT : (number + 1) * WAVE_HEIGHT][distance <= half] = (30, 90, 200)
    return page


def _spectrogram(audio: NDArray[np.float32]) -> Pixels:
    """Mono mix, 0 to 6 kHz upwards, 70 dB deep, black is loud."""
    windows = np.lib.stride_tricks.sliding_window_view(audio.mean(0), 1024)[::256]
    power: Any = np.abs(np.fft.rfft(windows * np.hanning(1024)).T) ** 2
    decibel = 10 * np.log10(power[: round(TOP_HZ / SAMPLE_RATE * 1024)] + 1e-9)
    grey = 255 * (1 - np.clip((decibel - 40 + DEPTH_DB) / DEPTH_DB, 0, 1))
    picture = Image.fromarray(grey[::-1].astype(np.uint8)).resize((WIDTH, SPECTRUM_HEIGHT))
    return np.repeat(np.asarray(picture)[..., None], 3, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--text", default="", help="above each of them")
    given = parser.parse_args()
    arrays = [np.load(file) for file in given.clips]
    sheet([(clip["video"], clip["audio"], given.text) for clip in arrays], given.out)


if __name__ == "__main__":
    main()
