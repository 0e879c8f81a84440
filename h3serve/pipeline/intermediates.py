"""Named intermediates of a generation, for those who compare engines step by step.

Groups that may be asked for, and the arrays each holds:
text         token_ids, token_types, text_token_tags, text_states
positions    position_ids float64, token_tags, video_indices, audio_indices, text_indices, condition_*_rows
noise        noise_video, noise_audio, noise_condition<i>, noise_posterior<i>
conditions   posterior_mean<i>, posterior_logvar<i>, condition_latents<i>, condition_audio<i>, condition_rows
schedule     sigmas_video, sigmas_audio, row_timesteps
steps        step_video_rows, step_audio_rows, step_video_velocity, step_audio_velocity (targets only)
latents      final_video_latents, final_audio_latents
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from h3serve.core.errors import RequestError

GROUPS = ("text", "positions", "noise", "conditions", "schedule", "steps", "latents")


@dataclass
class Intermediates:
    """Collects the arrays of the groups that were asked for; others cost nothing."""

    groups: frozenset[str]
    arrays: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    _steps: dict[str, list[np.ndarray[Any, Any]]] = field(default_factory=dict)

    @staticmethod
    def of(names: Iterable[str]) -> Intermediates:
        """A collector for these groups; RequestError for an unknown one."""
        wanted = frozenset(names)
        if unknown := sorted(wanted - set(GROUPS)):
            raise RequestError("keep", unknown[0], f"known here are {', '.join(GROUPS)}")
        return Intermediates(wanted)

    def put(self, group: str, **arrays: Any) -> None:
        """Keeps arrays under their names if `group` was asked for."""
        if group in self.groups:
            self.arrays |= {name: _array(value) for name, value in arrays.items()}

    def put_each(self, group: str, name: str, values: Iterable[Any]) -> None:
        """Keeps name0, name1, ..."""
        if group in self.groups:
            self.put(group, **{f"{name}{i}": value for i, value in enumerate(values)})

    def put_step(self, **arrays: Any) -> None:
        """Appends to arrays that grow by one entry at every evaluation (group `steps`)."""
        if "steps" in self.groups:
            for name, value in arrays.items():
                self._steps.setdefault(name, []).append(_array(value))

    def finished(self) -> dict[str, np.ndarray[Any, Any]]:
        """All arrays, those of the steps stacked along a first axis."""
        return self.arrays | {name: np.stack(values) for name, values in self._steps.items()}


def _array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return np.array(value)
