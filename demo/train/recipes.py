"""What examples the training set is made of: kinds, canvases and lengths, and the wordings of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from demo.train.forms import Form, blank_clip, blank_picture, make_form
from demo.world.caption import caption
from demo.world.names import frames_of, small_canvases
from demo.world.tasks import KEYFRAME_LINES, KEYFRAMES, Example, make_example
from h3serve.core import segments
from h3serve.core.geometry import Size
from h3serve.core.segments import Segment
from h3serve.models.text_encoder.tokenizer import Tokenizer
from h3serve.pipeline.prompt_builder import Shown, ShownAudio

SCENE_KINDS = ("t2va", *KEYFRAMES)  # share their clips
REFERENCE_KINDS = ("picture", "picture_sound", "motion", "continue")
SHARES = {
    "t2va": 0.40,
    "first": 0.08,
    "last": 0.08,
    "both": 0.08,
    "picture": 0.14,
    "picture_sound": 0.08,
    "motion": 0.07,
    "continue": 0.07,
}
SECONDS = {4: 0.7, 5: 0.2, 6: 0.1}
FAMILIES = {"t2va": 0.55, "picture": 0.15, "picture_sound": 0.1, "motion": 0.1, "continue": 0.1}  # of all clips
FIRST_SEED = 1 << 33  # training's seeds are never an evaluation's
WORDINGS = 5  # of a scene
STYLES = {"plain": 0.6, "structured": 0.3, "short": 0.1}


@dataclass(frozen=True)
class Recipe:
    """Examples of one family: "t2va" stands for all kinds that share its clips."""

    family: str
    canvas: Size
    frames: int


def recipes(
    seed: int,
    *,
    canvases: tuple[Size, ...] = (),
    seconds: dict[int, float] | None = None,
    kinds: Collection[str] = tuple(SHARES),
) -> Iterator[Recipe]:
    """Of these kinds, without an end; small canvases come more often and more to a portion: two thirds have a short
    edge of 64.
    """
    random, lengths = Random(seed), seconds or SECONDS
    families = {family: share for family, share in FAMILIES.items() if family in kinds}
    sizes = canvases or small_canvases()
    weights = [(w * h) ** -0.6 for w, h in sizes]
    while True:
        (family,) = random.choices(list(families), list(families.values()))
        (canvas,) = random.choices(sizes, weights)
        (length,) = random.choices(list(lengths), list(lengths.values()))
        yield Recipe(family, canvas, frames_of(length))


def examples_of(recipe: Recipe, first_seed: int, count: int) -> list[Example]:
    """The examples of `count` seeds in a row."""
    seeds = range(first_seed, first_seed + count)
    return [make_example(seed, recipe.family, recipe.canvas, recipe.frames) for seed in seeds]


def wordings(example: Example, kind: str) -> list[str]:
    """Prompts for an example of this kind; those with references have one."""
    if kind not in SCENE_KINDS:
        return [example.prompt]
    random = Random(example.scene.seed * 31 + SCENE_KINDS.index(kind))
    lines = [KEYFRAME_LINES[which].format(number) for number, which in enumerate(KEYFRAMES.get(kind, ()), 1)]
    start = " ".join(lines) + ("\n\n" if lines else "")
    styles = random.choices(list(STYLES), list(STYLES.values()), k=WORDINGS if kind == "t2va" else 2)
    return [start + caption(example.scene, random.getrandbits(30), style) for style in styles]


def form_of(kind: str, example: Example, tokenizer: Tokenizer) -> Form:
    """What all examples of this kind, canvas and length have in common."""
    canvas, frames = example.scene.canvas, example.scene.frames
    target = segments.target(canvas, frames)
    if kind == "t2va":
        return make_form("t2va", tokenizer, (), (), target)
    if kind in KEYFRAMES:
        conditions = [segments.keyframe(canvas, is_last=which == -1) for which in KEYFRAMES[kind]]
        return make_form("fl2va", tokenizer, [blank_picture(canvas)] * len(conditions), conditions, target)
    shown, given = list[Shown](), list[Segment]()
    for reference in example.references:
        scene = reference.scene
        if reference.kind == "picture":
            shown.append(blank_picture(scene.canvas))
            given.append(segments.image(scene.canvas))
        elif reference.kind == "clip":
            shown.append(blank_clip(scene.canvas, scene.frames, has_audio=True))
            given.append(segments.video(scene.canvas, scene.frames, scene.samples))
        else:
            shown.append(ShownAudio())
            given.append(segments.audio(scene.samples))
    return make_form("ref2va", tokenizer, shown, given, target)


def token_ids(tokenizer: Tokenizer, prompts: list[str]) -> list[NDArray[np.int64]]:
    return [np.array(tokenizer.ids(prompt), np.int64) for prompt in prompts]


def sample_captions(count: int = 3000) -> list[str]:
    """Wordings of every kind, for the tokenizer."""
    prompts = []
    for number, recipe in zip(range(count), recipes(0), strict=False):
        example = make_example(FIRST_SEED - 1 - number, recipe.family, recipe.canvas, recipe.frames)
        kind = ("t2va", *KEYFRAMES)[number % 4] if recipe.family == "t2va" else recipe.family
        prompts += wordings(example, kind)
    return prompts
