"""Picture agreement: a video against ground-truth frames. The worst frame must pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from h3serve.guard.metric import Figure, at_least, at_most
from h3serve.guard.thresholds import FrameLimits

Frame = np.ndarray[Any, np.dtype[np.uint8]]
Similarity = Callable[[Frame, Frame], float]

PSNR_CEILING = 100.0  # what identical frames get, in place of infinity
LAG_REACH = 2  # frames either way in which a late or early frame is looked for


def sample_indices(count: int, which: Literal["ends", "all"]) -> list[int]:
    """Indices of the frames that are compared: first, middle and last, or all."""
    return list(range(count)) if which == "all" else sorted({0, count // 2, count - 1})


def ssim(truth: Frame, frame: Frame) -> float:
    """Structural similarity of two uint8 [H,W,3] frames, 1 when equal."""
    return float(structural_similarity(truth, frame, channel_axis=2, data_range=255))


def psnr_db(truth: Frame, frame: Frame) -> float:
    """Peak signal-to-noise ratio of two uint8 [H,W,3] frames in dB, at most 100."""
    if np.array_equal(truth, frame):
        return PSNR_CEILING
    return min(float(peak_signal_noise_ratio(truth, frame, data_range=255)), PSNR_CEILING)


def mean_difference(truth: Frame, frame: Frame) -> float:
    """Mean absolute difference in 8-bit levels."""
    return float(np.abs(truth.astype(np.int16) - frame).mean())


def brightness_difference(truth: Frame, frame: Frame) -> float:
    """Largest difference of a colour channel's mean, in 8-bit levels: catches casts."""
    return float(np.abs(truth.mean(axis=(0, 1)) - frame.mean(axis=(0, 1))).max())


def lag(truth: Frame, video: Frame, index: int) -> int:
    """Offset of the frame near `index` that fits `truth` best; 0 unless another fits far better.

    Far better is half the difference or less, so that still pictures and coding noise count as 0.
    """
    at_home = mean_difference(truth, video[index])
    best, offset = at_home, 0
    for other in range(max(0, index - LAG_REACH), min(len(video), index + LAG_REACH + 1)):
        there = mean_difference(truth, video[other])
        if there < best and there <= at_home / 2:
            best, offset = there, other - index
    return offset


def clip_similarity(model: Path) -> Similarity:
    """Cosine similarity of CLIP picture embeddings, by a local transformers model folder."""
    import torch
    from transformers import CLIPImageProcessor, CLIPModel

    network = CLIPModel.from_pretrained(model, local_files_only=True).eval()
    processor = CLIPImageProcessor.from_pretrained(model, local_files_only=True)

    def similarity(truth: Frame, frame: Frame) -> float:
        pixels = processor(images=[truth, frame], return_tensors="pt")["pixel_values"]
        with torch.inference_mode():
            pooled = network.vision_model(pixel_values=pixels).pooler_output
            embedded = network.visual_projection(pooled)
        return float(torch.nn.functional.cosine_similarity(embedded[0], embedded[1], dim=0))

    return similarity


def compare_frames(
    truth: Mapping[int, Frame],
    count: int,
    video: Frame,
    *,
    limits: FrameLimits,
    clip: Similarity | None = None,
) -> list[Figure]:
    """Figures of `video` uint8 [F,H,W,3] against truth frames by index, of a clip of `count` frames.

    A video of another size or length gets that figure alone: nothing else would mean anything.
    """
    sizes = _size_figures(next(iter(truth.values())), count, video)
    if not all(figure.passed for figure in sizes):
        return sizes
    high: list[tuple[str, Similarity, float, str]] = [
        ("SSIM", ssim, limits.ssim, ""),
        ("PSNR", psnr_db, limits.psnr_db, " dB"),
        *([("CLIP", clip, limits.clip, "")] if clip else []),
    ]
    low: list[tuple[str, Similarity, float]] = [
        ("mean difference", mean_difference, limits.mean_difference),
        ("brightness difference", brightness_difference, limits.brightness_difference),
    ]
    figures = list(sizes)
    for name, measure, limit, unit in high:
        value, index = min((measure(frame, video[i]), i) for i, frame in truth.items())
        figures.append(at_least(name, value, limit, unit=unit, where=f"frame {index}"))
    for name, measure, limit in low:
        value, index = max((measure(frame, video[i]), i) for i, frame in truth.items())
        figures.append(at_most(name, value, limit, where=f"frame {index}"))
    late, index = max((abs(lag(frame, video, i)), i) for i, frame in truth.items())
    return [*figures, at_most("frame lag", late, limits.lag_frames, where=f"frame {index}")]


def _size_figures(truth: Frame, count: int, video: Frame) -> list[Figure]:
    pixels = max(abs(a - b) for a, b in zip(truth.shape, video.shape[1:], strict=True))
    return [
        at_most("frame count difference", abs(len(video) - count), 0, unit=" frames"),
        at_most("canvas difference", pixels, 0, unit=" px"),
    ]
