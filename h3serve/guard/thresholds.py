"""Every default limit of the guard. A case may override any of them by name."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MIB = 2**20
RunKind = Literal["nightly", "change"]


class _Limits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FrameLimits(_Limits):
    """Each must hold for the worst of the compared frames. Differences are in 8-bit levels."""

    clip: float = 0.90
    ssim: float = 0.92
    psnr_db: float = 24.0
    mean_difference: float = 10.0
    brightness_difference: float = 3.0  # a cast of 8 levels passes SSIM, PSNR and mean difference
    lag_frames: int = 0


class AudioLimits(_Limits):
    """Agreement with the ground truth, then what any sound must hold on its own."""

    spectral_similarity: float = 0.95
    waveform_correlation: float = 0.90
    rms_difference_db: float = 2.0
    duration_difference_s: float = 0.10
    channel_correlation: float = 0.90
    channel_rms_difference_db: float = 2.0
    balance_difference_db: float = 2.0
    level_dbfs: float = -70.0  # quieter than this is silence
    clipped_share: float = 0.001
    drift_s: float = 0.25


class MemoryLimits(_Limits):
    """Growth over the baseline's peak that is let pass: a share of it plus a constant."""

    load_share: float = 0.01
    load_bytes: int = 128 * MIB
    runtime_share: float = 0.02
    runtime_bytes: int = 128 * MIB


class TimeLimits(_Limits):
    """Growth over the baseline's seconds that is let pass: a share of them plus `floor_s`."""

    total_share: float
    denoise_share: float
    stage_share: float
    step_share: float
    floor_s: float = 0.05  # a stage of milliseconds has no meaningful share


# A nightly run has the machine for itself; a run on somebody's change shares it.
TIME_LIMITS: dict[RunKind, TimeLimits] = {
    "nightly": TimeLimits(total_share=0.15, denoise_share=0.10, stage_share=0.5, step_share=0.25),
    "change": TimeLimits(total_share=0.25, denoise_share=0.25, stage_share=0.8, step_share=0.30),
}


class Thresholds(_Limits):
    """The limits of one case; `time` None means the run kind's own."""

    frames: FrameLimits = Field(default_factory=FrameLimits)
    sound: AudioLimits = Field(default_factory=AudioLimits)
    memory: MemoryLimits = Field(default_factory=MemoryLimits)
    time: TimeLimits | None = None
