"""How far a run's clips are from another run's, pixel by pixel: what no detector notices shows here."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from h3serve.guard.image_metrics import psnr_db


def psnr_to(other: Path, clip: Path) -> float | None:
    """PSNR in dB over all pixels of two clips that were kept (`--keep`), 100 for equal ones; None if one was not."""
    if not (clip.exists() and other.exists()):
        return None
    a, b = (np.load(file)["video"] for file in (other, clip))
    return psnr_db(a, b)
