"""Pixels of scenes: flat colours, edges antialiased by signed distance, a whole batch at a time on any device.

Every shape is the larger of two distances, each a weighted sum of the radius and of |p|, |x|, |y| and y
(y downwards): one formula for all, so that a batch may mix shapes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from demo.world.names import BACKGROUNDS, COLOURS, FPS, NEW_BACKGROUNDS
from demo.world.scene import Scene

CORNER = 0.9  # half a box's side, in radii
REACH = 1.3  # from a triangle's centre to its corners
HOLE = 0.5  # a ring's inner radius
#            |p|  |x|    y    radius | |p|  |y|   y   radius
DISTANCES = {
    "ball": (1.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, -9.0),
    "ring": (1.0, 0.0, 0.0, -1.0, -1.0, 0.0, 0.0, HOLE),
    "box": (0.0, 1.0, 0.0, -CORNER, 0.0, 1.0, 0.0, -CORNER),
    "triangle": (0.0, 0.866, -0.5, -REACH / 2, 0.0, 0.0, 1.0, -REACH / 2),
}
PIXELS_AT_ONCE = {"cpu": 1 << 21, "cuda": 1 << 26}


def render(scenes: Sequence[Scene], device: torch.device | str = "cpu", frames: range | None = None) -> Tensor:
    """uint8 [B, F, H, W, 3] on `device`: all frames, or those in `frames`, of scenes of one canvas and length."""
    width, height = scenes[0].canvas
    assert all(s.canvas == scenes[0].canvas and s.frames == scenes[0].frames for s in scenes)
    shown = range(scenes[0].frames) if frames is None else frames
    at_once = max(1, PIXELS_AT_ONCE[torch.device(device).type] // (len(shown) * width * height))
    parts = [_draw(scenes[i : i + at_once], device, shown) for i in range(0, len(scenes), at_once)]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _draw(scenes: Sequence[Scene], device: torch.device | str, shown: range) -> Tensor:
    (width, height), short = scenes[0].canvas, min(scenes[0].canvas)
    places, looks, grounds = (torch.from_numpy(a).to(device, non_blocking=True) for a in _tables(scenes, shown))
    colour = grounds[:, None, None, None, :]  # [B,1,1,1,3], then [B,F,H,W,3]
    column = torch.arange(width, device=device) + 0.5
    row = (torch.arange(height, device=device) + 0.5)[:, None]
    for index in range(places.shape[1]):
        x, y, radius, seen = (places[:, index, :, k, None, None] for k in range(4))  # [B,F,1,1]
        weights = looks[:, index, :8, None, None, None]
        across, down, size = column - x * width, row - y * height, radius * short
        cover = _cover(across, down, size, weights) * seen
        colour = torch.lerp(colour, looks[:, index, None, None, None, 8:], cover[..., None])
    whole = colour.expand(len(scenes), len(shown), height, width, 3)
    return whole.add(0.5).to(torch.uint8)


def _cover(across: Tensor, down: Tensor, size: Tensor, weights: Tensor) -> Tensor:
    """How much of each pixel a shape covers, [B,F,H,W]; `size` is its radius in pixels."""
    p = torch.sqrt(across * across + down * down)
    w = weights.unbind(1)
    one = p * w[0] + (across.abs() * w[1] + (down * w[2] + size * w[3]))
    two = p * w[4] + (down.abs() * w[5] + (down * w[6] + size * w[7]))
    return torch.maximum(one, two).neg_().add_(0.5).clamp_(0, 1)


def _tables(scenes: Sequence[Scene], shown: range) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Float32: places [B,K,F,4], looks [B,K,11] (eight weights, RGB), backgrounds [B,3]; missing things unseen."""
    most = max(len(scene.things) for scene in scenes)
    places = np.zeros((len(scenes), most, len(shown), 4), np.float32)
    looks = np.zeros((len(scenes), most, 11), np.float32)
    t = np.array(shown) / FPS
    for number, scene in enumerate(scenes):
        state, things = scene.state(t), len(scene.things)
        places[number, :things] = np.stack([state.x, state.y, state.radius, state.seen], -1)
        looks[number, :things] = [(*DISTANCES[thing.shape], *COLOURS[thing.colour]) for thing in scene.things]
    grounds = np.array([(BACKGROUNDS | NEW_BACKGROUNDS)[scene.background] for scene in scenes], np.float32)
    return places, looks, grounds
