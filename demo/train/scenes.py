"""What the VAEs are trained on: fresh scenes for every batch, rendered where they are needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray

from demo.world import Motion, Scene, State, Thing, render, sample_scene, synthesize
from demo.world.names import FPS, Size

FRAMES = 107  # of the clip a window is taken from
WINDOW = 22  # frames: two encoder chunks, one decoder window
CROWDED = 0.5  # share of clips with many things at once: most of a scene is background, which is soon learned
MOVING = 0.7  # share of clips in which something moves; of a whole scene it is half
STILL = 0.1  # share of clips that show a big thing that stands still, as reference pictures do
RECOLOURED = 0.1  # share of clips in colours of their own
NEAR_EVENT = 0.75  # share of sounds with an event in them


def clip_batch(random: Random, count: int, canvas: Size, device: torch.device) -> torch.Tensor:
    """uint8 [count, 22, H, W, 3]: windows of clips, some of them mirrored, backwards or in odd colours."""
    shown = [crowd(random, canvas) if random.random() < CROWDED else window(random, canvas) for _ in range(count)]
    pixels = render(shown, device, range(WINDOW))  # type: ignore[arg-type]  # all that is asked of a scene, a crowd has
    for dim in (1, 2, 3):  # time, height, width
        if random.random() < 0.5:
            pixels = pixels.flip(dim)
    odd = int(count * RECOLOURED + random.random())
    if odd:
        pixels = torch.cat([pixels[:-odd], _recoloured(pixels[-odd:], random)])
    return pixels


@dataclass(frozen=True)
class Crowd:
    """Scenes in front of each other on one background, each moved by (x, y) and enlarged by a factor."""

    scenes: tuple[Scene, ...]
    moves: tuple[tuple[float, float, float], ...]
    canvas: Size
    frames: int
    background: str

    @property
    def things(self) -> tuple[Thing, ...]:
        return tuple(thing for scene in self.scenes for thing in scene.things)

    def state(self, t: NDArray[np.float64]) -> State:
        """As of a scene."""
        states = [scene.state(t) for scene in self.scenes]
        x, y, radius = (np.concatenate([getattr(state, name) for state in states]) for name in ("x", "y", "radius"))
        move = np.concatenate([np.tile(m, (len(s.things), 1)) for m, s in zip(self.moves, self.scenes, strict=True)])
        seen = np.concatenate([state.seen for state in states])
        return State(x + move[:, :1], y + move[:, 1:2], radius * move[:, 2:], seen)


def crowd(random: Random, canvas: Size) -> Crowd:
    """Two to five scenes, anywhere, of any size."""
    scenes = tuple(window(random, canvas) for _ in range(random.randint(2, 5)))
    moves = tuple((random.uniform(-0.4, 0.4), random.uniform(-0.4, 0.4), random.uniform(0.7, 1.4)) for _ in scenes)
    return Crowd(scenes, moves, canvas, FRAMES, scenes[0].background)


def window(random: Random, canvas: Size) -> Scene:
    """A scene that begins anywhere in a clip, mostly while it moves, or shows a big thing that stands still."""
    scene = sample_scene(random.getrandbits(40), canvas=canvas, frames=FRAMES)
    if random.random() < STILL:
        return replace(scene, things=scene.things[:1], motion=Motion("still"))
    first, last = 0.0, (FRAMES - WINDOW) / FPS
    if random.random() < MOVING:
        begins = scene.motion.start_s
        first, last = begins - WINDOW / FPS, begins + scene.motion.steps * scene.motion.step_s
    return replace(scene, offset_s=random.uniform(first, last))


def sound_batch(random: Random, count: int, seconds: int, device: torch.device) -> torch.Tensor:
    """float32 [count, 1, n]: both channels of `count` / 2 sounds of whole seconds."""
    scenes = [_heard(random, seconds) for _ in range(count // 2)]
    wave = synthesize(scenes, device).flatten(0, 1)[:, None]
    quieter = torch.tensor([random.choice((1.0, 10 ** random.uniform(-1, 0.1))) for _ in scenes])
    return wave * quieter.repeat_interleave(2).to(device)[:, None, None]


def _heard(random: Random, seconds: int) -> Scene:
    scene = sample_scene(random.getrandbits(40), frames=FRAMES)
    start = random.uniform(-0.5, FRAMES / FPS - seconds)
    if random.random() < NEAR_EVENT and scene.events:
        start = random.choice(scene.events).time_s - seconds * random.random()
    return replace(scene, offset_s=start, frames=seconds * FPS)


def _recoloured(pixels: torch.Tensor, random: Random) -> torch.Tensor:
    """With channels exchanged and a contrast and brightness of their own."""
    order = random.sample(range(3), 3)
    gain = torch.tensor([random.uniform(0.4, 1.0) for _ in range(3)], device=pixels.device)
    shift = torch.tensor([random.uniform(0.0, 80.0) for _ in range(3)], device=pixels.device)
    return (pixels[..., order] * gain + shift).clamp(0, 255).to(torch.uint8)
