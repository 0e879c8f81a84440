"""One evaluation of the model, as the denoise loop sees it: rows in, velocities out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from h3serve.models.transformer.transformer import StaticInputs, Transformer
from h3serve.pipeline.conditions import ConditionRows
from h3serve.pipeline.intermediates import Intermediates
from h3serve.pipeline.packing import PackedLayout
from h3serve.pipeline.schedule import StepTimes
from h3serve.pipeline.solver import Predict
from h3serve.runtime.adaln.modulation_tables import Scheduled


def prepare_static(transformer: Transformer, text_states: Tensor, layout: PackedLayout) -> StaticInputs:
    """The part of the model's input that no evaluation changes."""
    return transformer.prepare(
        text_states,
        torch.from_numpy(layout.positions),
        tags=torch.from_numpy(layout.tags),
        text_index=torch.from_numpy(layout.text_index),
        video_index=torch.from_numpy(layout.video_index),
        audio_index=torch.from_numpy(layout.audio_index),
        condition_video_rows=layout.condition_video_rows,
        condition_audio_rows=layout.condition_audio_rows,
    )


def make_predict(
    transformer: Transformer,
    scheduled: Scheduled,
    static: StaticInputs,
    conditions: ConditionRows,
    layout: PackedLayout,
    times: list[StepTimes],
    kept: Intermediates,
) -> Predict:
    """Binds all that is fixed. Every index is on the device before the loop: no evaluation waits for the host.

    `scheduled` holds the modulation of `times`.
    """
    device = conditions.video.device
    kinds = torch.from_numpy(layout.kinds).to(device)
    slots = [held[t.slots] for held, t in zip(scheduled.slots, times, strict=True)]
    slots_by_step = torch.from_numpy(np.stack(slots)).to(device)

    def predict(video: Tensor, audio: Tensor, step: int) -> tuple[Tensor, Tensor]:
        velocities: tuple[Tensor, Tensor] = transformer(
            torch.cat([conditions.video, video]),
            torch.cat([conditions.audio, audio]),
            static=static,
            modulation=scheduled.modulation,
            timestep_index=slots_by_step[step][kinds],
        )
        kept.put_step(step_video_rows=video, step_audio_rows=audio)
        kept.put_step(step_video_velocity=velocities[0], step_audio_velocity=velocities[1])
        return velocities

    return predict
