"""What is right about one clip: every figure is a share from 0 to 1, or a measurement in its own unit."""

from __future__ import annotations

from typing import Any

import numpy as np

from demo.detect import Heard, Seen, hear, see
from demo.evaluation.requests import given_frames
from demo.evaluation.rows import Case
from demo.world import Example
from demo.world.names import PITCHES, SAMPLE_RATE
from h3serve.guard.audio_metrics import spectral_similarity
from h3serve.guard.image_metrics import psnr_db, ssim
from h3serve.guard.pcm import to_pcm

TOGETHER_S = 0.080  # sound and picture of one event
SAME_PLACE = 0.15  # of the canvas' width: left, middle and right lie 0.25 apart
GOES_ON = 0.12  # how far from the clip's last picture a continuation may begin
ALIKE = 0.9  # SSIM of a given frame

Figures = dict[str, float]


def judge(case: Case, video: Any, audio: Any) -> tuple[Figures, Seen, Heard]:
    """Figures of uint8 [F,H,W,3] and float32 [2,n] against the case's scene, and what was detected."""
    seen, heard = see(video), hear(audio)
    figures = {**looks(case.example, seen), **sounds(case.example, seen, heard)}
    if case.example.keyframes:
        pairs = zip(case.example.keyframes, given_frames(case), strict=True)
        figures["ssim"] = min(ssim(picture, video[which]) for which, picture in pairs)
        figures["given frames"] = float(figures["ssim"] >= ALIKE)
    if case.example.kind == "continue":
        figures["continued"] = float(_goes_on(case.example, seen))
    return figures, seen, heard


def looks(example: Example, seen: Seen) -> Figures:
    """Attributes of the picture; of two things both must be right."""
    scene, move = example.scene, seen.move
    right = {
        "colour": seen.colours == tuple(t.colour for t in scene.things),
        "shape": seen.shapes == tuple(t.shape for t in scene.things),
        "size": seen.sizes == tuple(t.size for t in scene.things),
        "background": seen.background == scene.background,
        "things": seen.count == len(scene.things),
        "motion": (move.kind, move.direction) == (scene.motion.kind, scene.motion.direction),
        "side": move.side == scene.motion.side,
        "visible events": len(move.times) == len(scene.events),
    }
    return {name: float(ok) for name, ok in right.items()}


def sounds(example: Example, seen: Seen, heard: Heard) -> Figures:
    """Attributes of the sound, and of every note against the picture: its nearest visible event."""
    scene, notes, times = example.scene, heard.notes, np.array(seen.move.times)
    thing = scene.things[0]
    near = [int(np.abs(times - note.time_s).argmin()) for note in notes] if len(times) else []
    together = [abs(times[i] - note.time_s) <= TOGETHER_S for i, note in zip(near, notes, strict=False)]
    placed = [abs(seen.move.x[i] - note.x) <= SAME_PLACE for i, note in zip(near, notes, strict=False)]
    return {
        "sound events": float(len(notes) == len(scene.events)),
        "pitch": float(bool(notes) and all(note.pitch == PITCHES[thing.size][0] for note in notes)),
        "timbre": float(bool(notes) and all(note.material == thing.material for note in notes)),
        "together": float(np.mean(together)) if together else 0.0,
        "same side": float(np.mean(placed)) if placed else 0.0,
        "ambience": float(heard.ambience == scene.ambience),
    }


def fidelity(truth: tuple[Any, Any], video: Any, audio: Any) -> Figures:
    """PSNR in dB and SSIM of all frames on average, guard's spectral similarity of the mono mix at 16 kHz."""
    pictures, sound = truth
    frames = range(0, len(video), 3)
    mono = (to_pcm(wave, SAMPLE_RATE).mean(0) for wave in (sound, audio))
    return {
        "psnr": float(np.mean([psnr_db(pictures[i], video[i]) for i in frames])),
        "ssim": float(np.mean([ssim(pictures[i], video[i]) for i in frames])),
        "spectral similarity": spectral_similarity(*mono),
    }


def _goes_on(example: Example, seen: Seen) -> bool:
    """The same thing begins where the clip left it, and moves on in its way."""
    scene = example.scene
    state, thing, motion = scene.state(np.zeros(1)), scene.things[0], scene.motion
    away = np.hypot(seen.start[0] - state.x[0, 0], seen.start[1] - state.y[0, 0])
    same = seen.colours == (thing.colour,) and seen.shapes == (thing.shape,)
    return bool(same and away <= GOES_ON and (seen.move.kind, seen.move.direction) == (motion.kind, motion.direction))
