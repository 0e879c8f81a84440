"""A case as a request: its media written as files, as a user would give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from demo.evaluation.rows import SECONDS, Case
from demo.world import Reference, render
from h3serve.media.write.mp4_writer import mp4_writer
from h3serve.media.write.outputs import save_wav

CRF = 12  # reference clips are given well coded


def request_of(case: Case, folder: Path, *, steps: int) -> dict[str, Any]:
    """The request's fields; pictures, clips and sounds lie in `folder`."""
    example, conditions = case.example, []
    for frame, picture in zip(example.keyframes, given_frames(case), strict=True):
        file = folder / f"keyframe{frame}.png"
        Image.fromarray(picture).save(file)
        conditions.append({"type": "image", "uri": str(file), "role": "keyframe", "frame_index": frame})
    for number, reference in enumerate(example.references):
        conditions.append({**_write(reference, folder / f"reference{number}"), "role": "reference"})
    return {
        "task": example.task,
        "prompt": example.prompt,
        "conditions": conditions,
        "target": {"short_edge": case.short_edge, "aspect_ratio": case.ratio, "duration_seconds": float(SECONDS)},
        "seed": case.seed,
        "num_inference_steps": steps,
    }


def given_frames(case: Case) -> list[Any]:
    """The example's keyframes, uint8 [H,W,3] each."""
    scene = case.example.scene
    wanted = [range(scene.frames)[which] for which in case.example.keyframes]
    return [render([scene], frames=range(which, which + 1))[0, 0].numpy() for which in wanted]


def _write(reference: Reference, file: Path) -> dict[str, str]:
    pixels, wave = reference.pixels(), reference.wave()
    if pixels is None and wave is not None:
        save_wav(file.with_suffix(".wav"), wave.numpy())
        return {"type": "audio", "uri": str(file.with_suffix(".wav"))}
    assert pixels is not None
    if wave is None:
        Image.fromarray(pixels[0].numpy()).save(file.with_suffix(".png"))
        return {"type": "image", "uri": str(file.with_suffix(".png"))}
    height, width = pixels.shape[1:3]
    with mp4_writer(file.with_suffix(".mp4"), width=width, height=height, crf=CRF) as writer:
        writer.write_audio(np.ascontiguousarray(wave.numpy()))
        writer.write_frames(pixels.numpy())
    return {"type": "video_audio", "uri": str(file.with_suffix(".mp4"))}
