"""What the text encoder is shown: labels, pictures, sampled frames and the prompt, as tokens.

No chat template, no system prompt; every piece of text is tokenized on its own and the prompt goes
in as it is (spec/text_encoder.md 7.3 to 7.6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from h3serve.core.encoder_tokens import FRAMES_PER_BLOCK, sampled_frames
from h3serve.core.limits import Task
from h3serve.core.request import GenerationRequest
from h3serve.models.text_encoder.text_encoder import IMAGE, TEXT, VIDEO, EncoderInput
from h3serve.models.text_encoder.tokenizer import Tokenizer
from h3serve.models.text_encoder.vision_patches import MERGE, Grid, image_patches, video_patches
from h3serve.pipeline.conditions import PreparedCondition
from h3serve.pipeline.intermediates import Intermediates
from h3serve.pipeline.packing import TEXT_TAG, VIDEO_TAG

SAMPLE_FPS = 2

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class ShownImage:
    """A keyframe on the target canvas or an image reference: uint8 `[H, W, 3]`, as the VAE gets it."""

    pixels: Pixels


@dataclass(frozen=True, eq=False)
class ShownVideo:
    """A video reference: uint8 `[F, H, W, 3]` at 24 fps, cut to the target's frames but no shorter."""

    frames: Pixels
    has_audio: bool


@dataclass(frozen=True)
class ShownAudio:
    """An audio reference: a label is all the encoder learns of it."""


Shown = ShownImage | ShownVideo | ShownAudio


@dataclass(frozen=True, eq=False)
class BuiltPrompt:
    """The encoder's input, and the tag of each of its L rows: int64 `[L]`, 1 text, 0 vision block."""

    inputs: EncoderInput
    tags: torch.Tensor


def shown_conditions(prepared: Sequence[PreparedCondition]) -> tuple[list[ShownImage], list[Shown]]:
    """(keyframes, references) as the text encoder is shown them."""
    keyframes = [ShownImage(p.frames[0]) for p in prepared if p.segment.kind == "keyframe" and p.frames is not None]
    references: list[Shown] = []
    for item in prepared:
        if item.segment.kind == "audio":
            references.append(ShownAudio())
        elif item.segment.kind == "image" and item.frames is not None:
            references.append(ShownImage(item.frames[0]))
        elif item.segment.kind == "video" and item.frames is not None:
            references.append(ShownVideo(item.frames, has_audio=item.wave is not None))
    return keyframes, references


def present_request(
    request: GenerationRequest, prepared: Sequence[PreparedCondition], tokenizer: Tokenizer, kept: Intermediates
) -> BuiltPrompt:
    """Token ids, types and tags of the request's prompt."""
    keyframes, references = shown_conditions(prepared)
    shown = present(request.task, request.prompt, tokenizer, keyframes=keyframes, references=references)
    inputs = shown.inputs
    kept.put("text", token_ids=inputs.token_ids, token_types=inputs.token_types, text_token_tags=shown.tags)
    return shown


def present(
    task: Task,
    prompt: str,
    tokenizer: Tokenizer,
    *,
    keyframes: Sequence[ShownImage] = (),
    references: Sequence[Shown] = (),
) -> BuiltPrompt:
    """The prompt of one request; both sequences in request order.

    Keyframes are shown in fl2va only: beside references they stay unseen. The prompt spells out no
    tokens of a vision block (`core/prompt.py`).
    """
    shown: dict[str, Sequence[Shown]] = {"t2va": (), "fl2va": keyframes, "ref2va": references}
    script = _Script(tokenizer)
    for item in shown[task]:
        script.show(item)
    script.write(tokenizer.ids(prompt))
    return script.finish()


def block_timestamps(frames: int) -> list[str]:
    """The label before each vision block of a video of `frames` frames at 24 fps.

    The mean time of the block's two sampled frames, in seconds with one decimal; a tie of the
    binary value goes to even: 0.25 is written 0.2. A repeated last frame repeats its time.
    """
    last = sampled_frames(frames) - 1
    pairs = [(first, min(first + 1, last)) for first in range(0, last + 1, FRAMES_PER_BLOCK)]
    return [f"<{sum(pair) / len(pair) / SAMPLE_FPS:.1f} seconds>" for pair in pairs]


@dataclass(eq=False)
class _Script:
    """The prompt as it grows."""

    tokenizer: Tokenizer
    ids: list[int] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    patches: dict[int, list[torch.Tensor]] = field(default_factory=lambda: {IMAGE: [], VIDEO: []})
    grids: dict[int, list[Grid]] = field(default_factory=lambda: {IMAGE: [], VIDEO: []})
    labels: Counter[str] = field(default_factory=Counter)

    def show(self, item: Shown) -> None:
        match item:
            case ShownImage(pixels=pixels):
                self._label("Picture")
                self._block(IMAGE, self._keep(IMAGE, *image_patches(pixels)))
            case ShownAudio():
                self._label("Audio")
            case ShownVideo(frames=frames, has_audio=has_audio):
                if has_audio:
                    self._label("Audio")
                self._label("Video")
                pads = self._keep(VIDEO, *video_patches(frames))
                for timestamp in block_timestamps(len(frames)):
                    self.write(self.tokenizer.ids(timestamp))
                    self._block(VIDEO, pads)

    def write(self, ids: list[int]) -> None:
        """Appends text."""
        self._append(ids, [TEXT] * len(ids), TEXT_TAG)

    def finish(self) -> BuiltPrompt:
        inputs = EncoderInput(
            torch.tensor(self.ids),
            torch.tensor(self.types),
            *self._batched(IMAGE),
            *self._batched(VIDEO),
        )
        return BuiltPrompt(inputs, torch.tensor(self.tags))

    def _label(self, kind: str) -> None:
        """`<Picture 1>: ` and its like, numbered from 1 per kind."""
        self.labels[kind] += 1
        self.write(self.tokenizer.ids(f"<{kind} {self.labels[kind]}>: "))

    def _keep(self, kind: int, patches: torch.Tensor, grid: Grid) -> int:
        """Adds an image or video to its batch; the pads of each of its blocks."""
        self.patches[kind].append(patches)
        self.grids[kind].append(grid)
        return (grid[1] // MERGE) * (grid[2] // MERGE)

    def _block(self, kind: int, pads: int) -> None:
        vocabulary = self.tokenizer
        pad = vocabulary.image_pad if kind == IMAGE else vocabulary.video_pad
        ids = [vocabulary.vision_start, *[pad] * pads, vocabulary.vision_end]
        self._append(ids, [TEXT, *[kind] * pads, TEXT], VIDEO_TAG)

    def _append(self, ids: list[int], types: list[int], tag: int) -> None:
        self.ids += ids
        self.types += types
        self.tags += [tag] * len(ids)

    def _batched(self, kind: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if not self.patches[kind]:
            return None, None
        return torch.cat(self.patches[kind]), torch.tensor(self.grids[kind])
