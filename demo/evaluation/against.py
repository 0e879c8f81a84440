"""How far a run's clips are from another run's, pixel by pixel: what no detector notices shows here."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from h3serve.guard.frames import psnr_db

EVERY = 3  # frames


def psnr_to(other: Path, clip: Path) -> float | None:
    """Mean PSNR in dB of two clips that were kept (`--keep`), 100 for the same pixels; None where one was not."""
    if not (clip.exists() and other.exists()):
        return None
    a, b = (np.load(file)["video"][::EVERY] for file in (other, clip))
    return float(np.mean([psnr_db(one, two) for one, two in zip(a, b, strict=True)]))
