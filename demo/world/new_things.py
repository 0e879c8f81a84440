"""What the demo checkpoint has never seen or heard, for adapters: a teal ground, and glass, whose sound lasts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from demo.world.caption import caption
from demo.world.names import NEW_BACKGROUNDS, NEW_MATERIALS
from demo.world.scene import Scene
from demo.world.tasks import Example

NEW = (*NEW_BACKGROUNDS, *NEW_MATERIALS)


def with_new(scene: Scene, names: Collection[str]) -> Scene:
    """The scene on a new ground and of a new material, as `names` say."""
    for name in names:
        if name in NEW_BACKGROUNDS:
            scene = replace(scene, background=name)
        else:
            scene = replace(scene, things=tuple(replace(thing, material=name) for thing in scene.things))
    return scene


def asking_for(example: Example, names: Collection[str]) -> Example:
    """An example of text to video whose scene and prompt have the new things; no caption leaves them out."""
    scene = with_new(example.scene, names)
    style = "structured" if "\n" in example.prompt else "plain"
    return replace(example, scene=scene, prompt=caption(scene, scene.seed, style))
