"""Examples of every task: a scene, its prompt, and what is given beside the prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from demo.world.caption import AMBIENCES, GROUNDS, PLACES, caption, compose, describe
from demo.world.draw import render
from demo.world.motion import Motion
from demo.world.names import CLIP_FRAMES, FPS, MATERIALS, PICTURE_CANVAS, PITCHES, SOUND_SECONDS, Size
from demo.world.sample import sample_motion, sample_scene
from demo.world.scene import Scene, Thing
from demo.world.sound import synthesize
from h3serve.core.geometry import reference_video_size
from h3serve.weights.demo.demo_sizes import SIZE_RULES

KEYFRAMES: dict[str, tuple[int, ...]] = {"first": (0,), "last": (-1,), "both": (0, -1)}
KINDS = ("t2va", *KEYFRAMES, "picture", "picture_sound", "motion", "continue")
KEYFRAME_LINES = {
    0: "At 0.00 seconds into the target video, <Picture {}> is fully referenced.",
    -1: "At the end of the target video, <Picture {}> is fully referenced.",
}


@dataclass(frozen=True)
class Reference:
    """A `picture` (one frame), `clip` (frames and sound) or `sound`, given as the scene that it shows."""

    kind: str
    scene: Scene

    def pixels(self, device: torch.device | str = "cpu") -> Tensor | None:
        """uint8 [F, H, W, 3]: one frame of a picture, CLIP_FRAMES of a clip, None of a sound."""
        return None if self.kind == "sound" else render([self.scene], device)[0]

    def wave(self, device: torch.device | str = "cpu") -> Tensor | None:
        """float32 [2, n] at 32 kHz, None of a picture."""
        return None if self.kind == "picture" else synthesize([self.scene], device)[0]


@dataclass(frozen=True)
class Example:
    """`keyframes` are frames of `scene` itself (0 first, -1 last); `references` in the order of the request."""

    kind: str
    scene: Scene
    prompt: str
    keyframes: tuple[int, ...] = ()
    references: tuple[Reference, ...] = ()

    @property
    def task(self) -> str:
        """The request's task: t2va, fl2va or ref2va."""
        return "ref2va" if self.references else "fl2va" if self.keyframes else "t2va"


def make_example(seed: int, kind: str, canvas: Size = (64, 64), frames: int = 107) -> Example:
    """The example of `seed` for a kind of KINDS."""
    if kind in _MAKERS:
        return _MAKERS[kind](seed, canvas, frames)
    scene, style = sample_scene(seed, canvas=canvas, frames=frames), _style(seed)
    keyframes = KEYFRAMES.get(kind, ())
    lines = [KEYFRAME_LINES[which].format(number) for number, which in enumerate(keyframes, 1)]
    prompt = " ".join(lines) + ("\n\n" if lines else "") + caption(scene, seed, style)
    return Example(kind, scene, prompt, keyframes)


def _style(seed: int) -> str:
    """Three in ten structured, one in ten short."""
    return "structured" if seed % 10 in (2, 5, 8) else "short" if seed % 10 == 9 else "plain"


def _single(seed: int, frames: int) -> Motion:
    """Any motion of one thing alone that fits into `frames`."""
    random = Random(seed * 17 + 3)
    while (motion := sample_motion(random, None, frames / FPS)).kind == "meet":
        pass
    return motion


def _portrait(thing: Thing, seed: int) -> Reference:
    background = sample_scene(seed + 1_000_003).background
    scene = Scene((thing,), Motion("still"), background, "none", PICTURE_CANVAS, frames=1, seed=seed)
    return Reference("picture", scene)


def _picture(seed: int, canvas: Size, frames: int) -> Example:
    """Colour and shape from a picture, the rest from the prompt."""
    scene = sample_scene(seed, canvas=canvas, frames=frames, motion=_single(seed, frames))
    thing, random = scene.things[0], Random(seed)
    size = "" if scene.motion.kind == "grow" else f"{thing.size} "
    name = f"the {size}{thing.material} thing in <Picture 1>"
    prompt = compose(scene, [name], random, style=("plain", "structured")[seed % 3 == 0])
    return Example("picture", scene, prompt, references=(_portrait(thing, seed),))


def _picture_sound(seed: int, canvas: Size, frames: int) -> Example:
    """Timbre and pitch (and with it the size) from a sound as well."""
    scene = sample_scene(seed, canvas=canvas, frames=frames, motion=_single(seed, frames))
    thing, random = scene.things[0], Random(seed)
    strikes = sample_scene(
        seed + 2_000_003,
        canvas=canvas,
        frames=round(SOUND_SECONDS * FPS),
        motion=Motion("blink", side="middle", count=2),
        thing=thing,
        ambience="none",
    )
    sound = Reference("sound", replace(strikes, detune=scene.detune))
    prompt = compose(scene, ["the thing in <Picture 1>"], random, sound="the sound of <Audio 1>")
    return Example("picture_sound", scene, prompt, references=(_portrait(thing, seed), sound))


def _motion(seed: int, canvas: Size, frames: int) -> Example:
    """The motion of a clip for another thing."""
    random, motion = Random(seed), _single(seed, CLIP_FRAMES)
    size = reference_video_size(1.0, SIZE_RULES)
    other = sample_scene(seed + 3_000_003, canvas=size, frames=CLIP_FRAMES, motion=motion)
    scene = sample_scene(seed, canvas=canvas, frames=frames, motion=motion)
    name = describe(scene.things[0], random, with_size=motion.kind != "grow")
    how = random.choice(("moves like in <Video 1>", "does the same as in <Video 1>"))
    ground = random.choice(GROUNDS).format(scene.background)
    prompt = f"A{name[1:]} {how} {ground}, {_each_time(scene)} {random.choice(AMBIENCES[scene.ambience])}"
    return Example("motion", scene, prompt, references=(Reference("clip", other),))


def _each_time(scene: Scene) -> str:
    thing = scene.things[0]
    return f"with a {PITCHES[thing.size][0]} {thing.material} {MATERIALS[thing.material]} each time."


def _continue(seed: int, canvas: Size, frames: int) -> Example:
    """The scene after a clip of it: one motion, seen through two windows."""
    random = Random(seed * 13 + 5)
    cut = CLIP_FRAMES / FPS
    kind = random.choice(("slide", "orbit", "bounce"))
    whole = sample_scene(seed, canvas=canvas, frames=CLIP_FRAMES + frames, motion=kind)
    motion = _crossing(whole.motion, random, cut)
    target = replace(whole, motion=motion, frames=frames, offset_s=cut)
    size = reference_video_size(canvas[0] / canvas[1], SIZE_RULES)
    shown = replace(whole, motion=motion, frames=CLIP_FRAMES, canvas=size)
    return Example("continue", target, _go_on(target, random), references=(Reference("clip", shown),))


def _crossing(motion: Motion, random: Random, cut: float) -> Motion:
    """Timed so that it is under way when the clip ends at `cut`, with one or two events to come."""
    start = random.uniform(0.25, 0.6)
    if motion.kind == "slide":
        return replace(motion, start_s=start, step_s=cut - start + random.uniform(0.7, 1.6))
    while True:  # an event at the very cut would belong to neither
        step = random.uniform(1.3, 1.7) if motion.kind == "orbit" else random.uniform(0.32, 0.45)
        timed = replace(motion, start_s=start, step_s=step, count=12)
        if min(abs(t - cut) for t in timed.event_times) > 0.1:
            past = sum(t < cut for t in timed.event_times)
            return replace(timed, count=past + random.randint(1, 2))


def _go_on(scene: Scene, random: Random) -> str:
    """`The thing in <Video 1> goes on: it bounces twice more ...`."""
    thing = scene.things[0]
    number = len(scene.events)
    how = {
        "slide": f"slides on {scene.motion.direction} and stops",
        "orbit": f"circles on {scene.motion.direction}, {number} more time{'s' * (number > 1)} past the lowest point",
        "bounce": f"bounces {number} more time{'s' * (number > 1)} {PLACES.get(scene.motion.side, ('',))[0]}",
    }[scene.motion.kind]
    start = random.choice(("<Video 1> goes on: the", "After <Video 1> the"))
    quiet = random.choice(AMBIENCES[scene.ambience])
    return f"{start} {thing.size} {thing.material} thing {how}, {_each_time(scene)} {quiet}"


_MAKERS: dict[str, Callable[[int, Size, int], Example]] = {
    "picture": _picture,
    "picture_sound": _picture_sound,
    "motion": _motion,
    "continue": _continue,
}
