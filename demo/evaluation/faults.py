"""Faults that can be planted into the engine, to see what they do to meaning."""

from __future__ import annotations

from bench.guard_faults import (
    Fault,
    audio_shift_12,
    dropped_condition_noise,
    swap_query_and_key,
    swapped_schedules,
)

FAULTS = {
    "qkv-order": Fault("query and key swapped in QKV", weights=swap_query_and_key),
    "swapped-schedules": Fault("video and audio schedules swapped", code=swapped_schedules),
    "audio-shift-12": Fault("audio shift 12 instead of 3", code=audio_shift_12),
    "no-condition-noise": Fault("condition noise dropped", code=dropped_condition_noise),
}
