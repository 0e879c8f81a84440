"""What all samples of one kind, canvas and length share: presentation before the prompt, and the packed rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h3serve.core.limits import Task
from h3serve.core.segments import Segment
from h3serve.models.text_encoder.text_encoder import IMAGE, TEXT, VIDEO, mrope_positions
from h3serve.models.text_encoder.tokenizer import Tokenizer
from h3serve.pipeline.packing import PackedLayout, pack
from h3serve.pipeline.prompt_builder import Shown, ShownImage, ShownVideo, present

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Form:
    """`prefix` are the P tokens before the prompt, of types 0 text, 1 picture, 2 clip; `places` [3, P] is where."""

    conditions: tuple[Segment, ...]
    target: Segment
    prefix: Ints
    types: Ints
    tags: Ints
    places: Ints

    @cached_property
    def layout(self) -> PackedLayout:
        """The rows after the text, as if there were no text: with L tokens of it all times are L later."""
        return pack(np.zeros(0, np.int64), self.conditions, self.target)

    @property
    def rows(self) -> int:
        """Rows after the text."""
        return len(self.layout.tags)

    @property
    def vision_places(self) -> Ints:
        """Where in the prefix the vision tokens stand."""
        return np.flatnonzero(self.types != TEXT)

    def text_positions(self, tokens: int) -> Ints:
        """[3, L] of L tokens in all: the prompt goes on after the largest position of the prefix."""
        start = int(self.places.max()) + 1 if len(self.prefix) else 0
        prompt = np.arange(start, start + tokens - len(self.prefix))
        return np.concatenate([self.places, np.broadcast_to(prompt, (3, len(prompt)))], axis=1)

    def text_tags(self, tokens: int) -> Ints:
        """[L]: 1 text, 0 vision block."""
        return np.concatenate([self.tags, np.ones(tokens - len(self.prefix), np.int64)])


def make_form(
    task: Task, tokenizer: Tokenizer, shown: Sequence[Shown], conditions: Sequence[Segment], target: Segment
) -> Form:
    """From what the encoder is shown (its pixels do not matter) and the segments, both in packed order."""
    given: dict[str, Any] = {"keyframes" if task == "fl2va" else "references": shown}
    presentation = present(task, "", tokenizer, **given)
    inputs = presentation.inputs
    types = inputs.token_types.long()
    places = mrope_positions(types, inputs.image_grids, inputs.video_grids) if len(types) else types.new_zeros(3, 0)
    return Form(
        tuple(conditions),
        target,
        inputs.token_ids.long().numpy(),
        types.numpy(),
        presentation.tags.long().numpy(),
        places.numpy(),
    )


def blank_picture(size: tuple[int, int]) -> ShownImage:
    """A picture of this width and height."""
    return ShownImage(np.zeros((size[1], size[0], 3), np.uint8))


def blank_clip(size: tuple[int, int], frames: int, *, has_audio: bool) -> ShownVideo:
    """A clip of this width and height."""
    return ShownVideo(np.zeros((frames, size[1], size[0], 3), np.uint8), has_audio)


__all__ = ["IMAGE", "VIDEO", "Form", "blank_clip", "blank_picture", "make_form"]
