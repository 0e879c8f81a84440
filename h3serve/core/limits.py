"""The three tasks, the two weight partitions and the published limits (spec/tasks_and_validation.md 8.1-8.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Task = Literal["t2va", "fl2va", "ref2va"]
Partition = Literal["fl2va", "ref2va"]
Quality = Literal["exact", "lossless", "fast"]
Solver = Literal["euler", "multistep"]

PARTITION_OF: dict[Task, Partition] = {"t2va": "fl2va", "fl2va": "fl2va", "ref2va": "ref2va"}
KEYFRAME_SIGNATURES = ((0,), (-1,), (0, -1))


@dataclass(frozen=True)
class Limits:
    """What the release publishes as its working range; durations in seconds."""

    min_seconds: float = 4.0
    max_seconds: float = 15.0
    min_reference_seconds: float = 2.0
    max_reference_seconds: float = 15.0  # of one video or audio, of all videos together, of all audio together
    reference_slack_seconds: float = 0.15  # the model's own 15 s videos last 362 frames = 15.083 s; codecs pad a little
    min_reference_frames: int = 22  # at 24 fps: one window of the video VAE
    images: int = 9
    videos: int = 3
    audios: int = 3
    files: int = 12
    min_short_edge: int = 64
    max_short_edge: int = 4096
    min_ratio: float = 0.25  # of width to height
    max_ratio: float = 4.0
    max_steps: int = 1000
    max_seed: int = 2**63 - 1
    max_prompt_tokens: int = 8_192  # ours: none is published, the published requests have up to 919
    max_prompt_characters: int = 65_536  # no text that a person writes has so few tokens a character
    min_shift: float = 0.01  # ours too: between them all points of a schedule are distinct in float32
    max_shift: float = 1000.0
    adapters: int = 8  # ours, and
    max_strength: float = 10.0  # either way
    min_sigma_gap: float = 1e-6  # ours: such neighbours, and their timesteps, are distinct in float32


LIMITS = Limits()

DEFAULT_SHORT_EDGE = 768
DEFAULT_RATIO = "16:9"  # of "auto" without a keyframe
DEFAULT_STEPS = 50
DEFAULT_SEED = 42
DEFAULT_VISUAL_CONDITION_LEVEL = 0.999
DEFAULT_AUDIO_CONDITION_LEVEL = 1.0
