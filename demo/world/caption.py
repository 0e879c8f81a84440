"""Sentences about scenes: a few wordings of each part, put together in several orders; nothing left to guess."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from demo.world.names import MATERIALS, NEW_MATERIALS, PITCHES
from demo.world.scene import Scene, Thing

STYLES = ("plain", "structured", "short")
SIZE_WORDS = {"small": ("small", "little"), "medium": ("medium", "medium-sized"), "large": ("large", "big")}
TIMES = {1: ("once", "one time"), 2: ("twice", "two times"), 3: ("three times",)}
NUMBERS = {1: "one", 2: "two", 3: "three"}
PLACES = {
    "left": ("on the left", "at the left side"),
    "middle": ("in the middle", "in the centre"),
    "right": ("on the right", "at the right side"),
}
GROUNDS = ("on a {} background", "in front of a {} background", "against {}")
AMBIENCES = {
    "none": ("Nothing else is heard.", "There is no other sound.", "It is silent otherwise."),
    "wind": ("Soft wind is heard all the time.", "A soft wind blows in the background."),
    "hum": ("A low hum is heard all the time.", "There is a low hum in the background."),
}


def caption(scene: Scene, seed: int, style: str = "plain") -> str:
    """What is seen and heard, worded by `seed`.

    `plain` is prose, `structured` the release's three fields, `short` leaves out size, background and ambience.
    """
    random = Random(seed * 31 + 7)
    sized = style != "short" and scene.motion.kind != "grow"
    names = [describe(thing, random, with_size=sized) for thing in scene.things]
    return compose(scene, names, random, style=style)


def compose(scene: Scene, names: Sequence[str], random: Random, *, style: str = "plain", sound: str = "") -> str:
    """The same with the things called by `names` ("a red ball") and their sound by `sound`."""
    action, notes = act(scene, names, random), sound or sounds(scene, random)
    if style == "short":
        return f"{_capital(action)}, {notes}."
    ground = random.choice(GROUNDS).format(scene.background)
    quiet = random.choice(AMBIENCES[scene.ambience])
    if style == "structured":
        seen = random.choice((f"{_capital(action)} {ground}.", f"{_capital(ground)}, {action}."))
        return (
            f"integrated_multimodal_description: [Shot 1] {seen}\n"
            f"overall_soundscape: {_capital(notes)}. {quiet}\nnon_diegetic_music: None."
        )
    orders = (
        f"{_capital(action)} {ground}, with {notes}. {quiet}",
        f"{_capital(ground)}, {action}. {_capital(notes)}. {quiet}",
        f"{_capital(action)}. The background is {scene.background}. The sound: {notes}. {quiet}",
        f"{quiet} {_capital(action)} {ground}, {notes}.",
    )
    return random.choice(orders)


def describe(thing: Thing, random: Random, *, with_size: bool = True) -> str:
    """`a small red wooden ball` and its like."""
    size = random.choice(SIZE_WORDS[thing.size]) if with_size else ""
    matter = {"wooden": "wood"}.get(thing.material, thing.material)
    wordings = (
        f"{size} {thing.colour} {thing.material} {thing.shape}",
        f"{size} {thing.colour} {thing.shape} made of {matter}",
    )
    return f"a {random.choice(wordings).strip()}"


def sounds(scene: Scene, random: Random) -> str:
    """`two low wooden knocks`."""
    thing, number = scene.things[0], len(scene.events)
    pitch, noise = PITCHES[thing.size][0], (MATERIALS | NEW_MATERIALS)[thing.material]
    return f"{NUMBERS[number]} {pitch} {thing.material} {noise}{'s' * (number > 1)}" + random.choice(
        ("", " in time with it", " at that moment")
    )


def act(scene: Scene, names: Sequence[str], random: Random) -> str:
    """What happens, without a capital or a full stop."""
    motion, name = scene.motion, names[0]
    place = random.choice(PLACES.get(motion.side, ("",)))
    times = random.choice(TIMES[max(1, len(scene.events))])
    end = motion.direction.split(" to ")[-1]
    phrases = {
        "slide": (
            f"{name} slides from {motion.direction} and stops",
            f"{name} moves {motion.direction} and stops at the {end}",
        ),
        "bounce": (f"{name} bounces {times} {place}", f"{place} {name} bounces on the floor {times}"),
        "orbit": (
            f"{name} circles {motion.direction} {times}",
            f"{name} goes round {motion.direction}, {times} past the lowest point",
        ),
        "fall": (f"{name} falls down {place} and lands", f"{place} {name} drops to the floor and stays there"),
        "grow": (f"{name} grows from small to large {place}", f"{place} {name} swells until it is large"),
        "blink": (f"{name} appears {times} {place}", f"{place} {name} blinks, it appears {times}"),
        "meet": tuple(
            f"{name} from the left and {names[-1]} from the right {what}"
            for what in ("meet in the middle and move apart", "touch in the middle and go back")
        ),
    }
    return random.choice(phrases[motion.kind])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
