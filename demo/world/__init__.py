"""The world: seeded scenes with exact ground truth, their pixels, their sound and sentences about them."""

from demo.world.caption import caption
from demo.world.draw import render
from demo.world.motion import Motion
from demo.world.sample import sample_scene
from demo.world.scene import Event, Scene, State, Thing
from demo.world.sound import synthesize
from demo.world.tasks import KINDS, Example, Reference, make_example

__all__ = [
    "KINDS",
    "Event",
    "Example",
    "Motion",
    "Reference",
    "Scene",
    "State",
    "Thing",
    "caption",
    "make_example",
    "render",
    "sample_scene",
    "synthesize",
]
