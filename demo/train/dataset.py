"""The training set: scenes rendered, encoded and kept on the device, bucket by bucket, as many as there is time for."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from demo.train.ahead import made_ahead
from demo.train.batch_plan import Bucket
from demo.train.encode import Encoders, audio_rows, video_rows
from demo.train.forms import Form
from demo.train.loop import Clock, write_whole
from demo.train.recipes import SCENE_KINDS, Recipe, examples_of, form_of, token_ids, wordings
from demo.train.text import patches_of, see
from demo.world import render, synthesize
from demo.world.tasks import KEYFRAMES, Example
from h3serve.core.encoder_tokens import SAMPLE_STEP
from h3serve.models.text_encoder.text_encoder import TextEncoder
from h3serve.models.text_encoder.tokenizer import Tokenizer
from h3serve.models.text_encoder.vision_patches import image_grid, video_grid

PIXELS = {"cuda": 400_000, "cpu": 20_000}  # of one frame of all clips of a portion together
SEEDS = 64  # at most, of a portion
PORTIONS = 2000  # after so many their recipes repeat
Prompts = list[list[NDArray[np.int64]]]


@dataclass(frozen=True)
class Portion:
    """Examples of a recipe with the wordings of each of its kinds as token ids."""

    recipe: Recipe
    examples: list[Example]
    prompts: dict[str, Prompts]


@dataclass
class Growing:
    """A bucket while it fills: lists of what will be stacked."""

    form: Form
    prompts: Prompts = field(default_factory=list)
    parts: dict[str, list[Tensor]] = field(default_factory=dict)
    deep: list[tuple[Tensor, ...]] = field(default_factory=list)

    def add(self, prompts: Prompts, deep: tuple[Tensor, ...], **parts: Tensor) -> None:
        self.prompts += prompts
        self.deep.append(deep)
        for name, value in parts.items():
            self.parts.setdefault(name, []).append(value)


class Maker:
    """Makes portions into buckets. One text encoder, whose vision tower is not trained, for all that is seen."""

    def __init__(self, encoders: Encoders, text_encoder: TextEncoder, tokenizer: Tokenizer, *, seed: int = 0) -> None:
        self.encoders, self.text_encoder, self.tokenizer = encoders, text_encoder, tokenizer
        self.growing: dict[tuple[str, Recipe], Growing] = {}
        self.clips = 0
        self.generator = torch.Generator(encoders.device).manual_seed(seed)

    def fill(self, recipes: Iterator[Recipe], clock: Clock, *, first_seed: int, most: int, workers: int = 0) -> None:
        """Until the clock is done or there are `most` clips; scenes and wordings are made ahead by processes."""
        pixels = PIXELS[self.encoders.device.type]
        wanted = list(itertools.islice(recipes, PORTIONS))

        def portion(number: int) -> Portion:
            recipe = wanted[number % PORTIONS]
            count = min(SEEDS, max(4, pixels // (recipe.canvas[0] * recipe.canvas[1])))
            return self.prepare(recipe, first_seed + SEEDS * number, count)

        portions = made_ahead(portion, 0, workers)
        while not clock.done and self.clips < most:
            self.add(next(portions))
        portions.close()

    def prepare(self, recipe: Recipe, first_seed: int, count: int) -> Portion:
        examples = examples_of(recipe, first_seed, count)
        kinds = SCENE_KINDS if recipe.family == "t2va" else (recipe.family,)
        prompts = {k: [token_ids(self.tokenizer, wordings(e, k)) for e in examples] for k in kinds}
        return Portion(recipe, examples, prompts)

    @torch.no_grad()
    def add(self, portion: Portion) -> None:
        """Renders and encodes; every kind of the portion's family gets its bucket's share."""
        device = self.encoders.device
        scenes = [e.scene for e in portion.examples]
        frames = render(scenes, device)
        target = {
            "video": video_rows(self.encoders, frames, sampled=False),
            "audio": audio_rows(self.encoders, synthesize(scenes, device)),
        }
        self.clips += len(scenes)
        if portion.recipe.family != "t2va":
            self._store(portion.recipe.family, portion, target, self._references(portion.examples))
            return
        ends = {which: self._picture(frames[:, which, None]) for which in (0, -1)}
        for kind in SCENE_KINDS:
            shown = [ends[which] for which in KEYFRAMES.get(kind, ())]
            self._store(kind, portion, target, self._joined(shown, len(scenes)))

    def _store(self, kind: str, portion: Portion, target: dict[str, Tensor], given: dict[str, Any]) -> None:
        key = kind, portion.recipe
        if key not in self.growing:
            self.growing[key] = Growing(form_of(kind, portion.examples[0], self.tokenizer))
        self.growing[key].add(portion.prompts[kind], **given, **target)

    def _references(self, examples: Sequence[Example]) -> dict[str, Any]:
        device, parts = self.encoders.device, []
        for references in zip(*(e.references for e in examples), strict=True):
            scenes = [r.scene for r in references]
            heard = audio_rows(self.encoders, synthesize(scenes, device)) if references[0].kind != "picture" else None
            if references[0].kind == "sound":
                parts.append({"condition_audio": heard})
                continue
            frames = render(scenes, device)
            parts.append(self._picture(frames) if heard is None else self._clip(frames) | {"condition_audio": heard})
        return self._joined(parts, len(examples))

    def _picture(self, frames: Tensor) -> dict[str, Any]:
        grid = image_grid(frames.shape[3], frames.shape[2])
        return self._seen(frames, frames, grid)

    def _clip(self, frames: Tensor) -> dict[str, Any]:
        shown = frames[:, ::SAMPLE_STEP]
        return self._seen(frames, shown, video_grid(shown.shape[1], frames.shape[3], frames.shape[2]))

    def _seen(self, frames: Tensor, shown: Tensor, grid: tuple[int, int, int]) -> dict[str, Any]:
        features, deep = see(self.text_encoder, patches_of(shown, grid), grid)
        rows = video_rows(self.encoders, frames, sampled=True, generator=self.generator)
        return {"condition_video": rows, "features": features, "deep": deep}

    def _joined(self, parts: Sequence[dict[str, Any]], count: int) -> dict[str, Any]:
        """One after another in packed order; kinds without a part have none of its rows."""
        device = self.encoders.device
        joined: dict[str, Any] = {}
        widths = {"condition_video": 96, "condition_audio": 32, "features": self.text_encoder.config.width}
        for name, width in widths.items():
            held = [p[name] for p in parts if name in p]
            joined[name] = torch.cat(held, 1) if held else torch.zeros(count, 0, width, device=device).half()
        joined["deep"] = tuple(torch.cat(d, 1) for d in zip(*(p["deep"] for p in parts if "deep" in p), strict=True))
        return joined

    def buckets(self) -> list[Bucket]:
        """All that has been made so far."""
        made, stacked = [], dict[tuple[int, ...], Tensor]()

        def stack(values: Sequence[Tensor]) -> Tensor:
            """Kinds that share their clips share the tensor too."""
            key = tuple(id(value) for value in values)
            if key not in stacked:
                stacked[key] = torch.cat(list(values))
            return stacked[key]

        for (kind, _), growing in self.growing.items():
            parts = {name: stack(values) for name, values in growing.parts.items()}
            deep = tuple(stack(d) for d in zip(*growing.deep, strict=True))
            made.append(Bucket(kind=kind, form=growing.form, prompts=growing.prompts, deep=deep, **parts))
        return made


def save_buckets(buckets: Sequence[Bucket], file: Path) -> None:
    """One file; tensors that kinds share are written once."""
    write_whole(file, lambda partial: torch.save([vars(b) for b in buckets], partial))


def load_buckets(files: Sequence[Path], device: torch.device, kinds: Collection[str]) -> list[Bucket]:
    """Buckets of these kinds, of all files."""
    held = [values for file in files for values in torch.load(file, map_location="cpu", weights_only=False)]
    moved: dict[int, Tensor] = {}

    def here(tensor: Tensor) -> Tensor:
        return moved.setdefault(tensor.untyped_storage().data_ptr() or id(tensor), tensor.to(device))

    buckets = []
    for values in held:
        if values["kind"] in kinds:
            tensors = {name: here(value) for name, value in values.items() if isinstance(value, Tensor)}
            buckets.append(Bucket(**{**values, **tensors, "deep": tuple(here(d) for d in values["deep"])}))
    return buckets
