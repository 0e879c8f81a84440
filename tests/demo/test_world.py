"""The world: scenes are their seeds', pixels and sound say what the scene says, prompts name what they must."""

import numpy as np
import pytest
import torch

from demo.world import KINDS, caption, make_example, render, sample_scene, synthesize
from demo.world.motion import KINDS as MOTIONS
from demo.world.names import (
    AMBIENCES,
    BACKGROUNDS,
    COLOURS,
    FPS,
    MATERIALS,
    PITCHES,
    SHAPES,
    SIZES,
    canvas_of,
    frames_of,
    samples_of,
    small_canvases,
)

SEEDS = range(300)


def test_sizes_are_those_a_request_gets() -> None:
    assert [frames_of(s) for s in (4, 5, 6)] == [107, 124, 158]
    assert samples_of(107) == 142_400
    assert canvas_of("16:9", 128) == (224, 128)
    assert all(side % 32 == 0 and 64 <= side <= 224 for canvas in small_canvases() for side in canvas)


def test_a_scene_is_its_seed() -> None:
    assert all(sample_scene(seed) == sample_scene(seed) for seed in SEEDS)
    assert len({sample_scene(seed) for seed in SEEDS}) == len(SEEDS)


def test_everything_occurs_about_equally_often() -> None:
    scenes = [sample_scene(seed) for seed in range(2000)]
    for names, found in (
        (SHAPES, [s.things[0].shape for s in scenes]),
        (COLOURS, [s.things[0].colour for s in scenes]),
        (MATERIALS, [s.things[0].material for s in scenes]),
        (MOTIONS, [s.motion.kind for s in scenes]),
        (BACKGROUNDS, [s.background for s in scenes]),
        (AMBIENCES, [s.ambience for s in scenes]),
    ):
        assert all(found.count(name) > 0.7 * len(scenes) / len(names) for name in names)


@pytest.mark.parametrize("seconds", [4, 5, 6])
def test_motions_end_inside_the_clip_and_things_stay_inside_the_canvas(seconds: int) -> None:
    for seed in SEEDS:
        scene = sample_scene(seed, canvas=small_canvases()[seed % 10], frames=frames_of(seconds))
        assert len(scene.events) == scene.motion.count
        assert scene.events[0].time_s > 0.2 and scene.events[-1].time_s < scene.seconds - 0.2
        gaps = np.diff([event.time_s for event in scene.events])
        assert (gaps > 0.5).all()
        state, short = scene.state(np.arange(scene.frames) / FPS), min(scene.canvas)
        for place, side in ((state.x, scene.canvas[0]), (state.y, scene.canvas[1])):
            reach = state.radius * short / side
            assert (place - reach >= 0).all() and (place + reach <= 1).all()


def test_pixels_are_where_the_state_says() -> None:
    scenes = [sample_scene(seed, canvas=(96, 64), motion="fall") for seed in range(24)]
    video = render(scenes)
    assert video.shape == (24, 107, 64, 96, 3) and video.dtype == torch.uint8
    for scene, frames in zip(scenes, video.numpy(), strict=True):
        ground = np.array(BACKGROUNDS[scene.background])
        assert (frames[:, 0, 0] == ground).all()
        thing = np.abs(frames.astype(int) - ground).sum(-1) > 60
        rows, columns = np.nonzero(thing[50])
        state = scene.state(np.array([50 / FPS]))
        assert abs((columns.mean() + 0.5) / 96 - state.x[0, 0]) < 0.01
        if scene.things[0].shape != "triangle":
            assert abs((rows.mean() + 0.5) / 64 - state.y[0, 0]) < 0.01
        assert (frames[50][thing[50]] == COLOURS[scene.things[0].colour]).all(-1).mean() > 0.5


def test_a_batch_and_its_parts_are_the_same() -> None:
    scenes = [sample_scene(seed, canvas=(64, 96)) for seed in range(30)]
    assert any(len(s.things) == 2 for s in scenes)
    video, sound = render(scenes), synthesize(scenes)
    for index in (0, 13, 29):
        assert torch.equal(render([scenes[index]])[0], video[index])
        torch.testing.assert_close(synthesize([scenes[index]])[0], sound[index])
    assert torch.equal(render(scenes, frames=range(40, 45)), video[:, 40:45])


def test_sound_starts_with_its_event_and_comes_from_its_side() -> None:
    scenes = [sample_scene(seed, ambience="none") for seed in range(60)]
    sound = synthesize(scenes)
    assert sound.shape == (60, 2, 142_400) and sound.abs().max() < 0.9
    for scene, wave in zip(scenes, sound, strict=True):
        first = scene.events[0]
        heard = int(wave.abs().sum(0).nonzero()[0])
        assert abs(heard / 32_000 - first.time_s) < 0.002
        left, right = wave[:, heard : heard + 2000].square().sum(1).tolist()
        assert abs(np.arctan2(right**0.5, left**0.5) / (np.pi / 2) - first.x) < 0.01


def test_ambience_is_quiet() -> None:
    for name, low, high in (("none", -1e9, -120), ("wind", -45, -34), ("hum", -45, -34)):
        scene = sample_scene(3, ambience=name)
        before = synthesize([scene])[0, :, : int(scene.events[0].time_s * 32_000) - 100]
        level = 20 * np.log10(float(before.square().mean().sqrt()) + 1e-9)
        assert low < level < high


@pytest.mark.parametrize("style", ["plain", "structured"])
def test_captions_leave_nothing_to_guess(style: str) -> None:
    for seed in SEEDS:
        scene = sample_scene(seed)
        text = caption(scene, seed, style).lower()
        thing = scene.things[0]
        for word in (*(t.colour for t in scene.things), *(t.shape for t in scene.things), scene.background):
            assert word in text
        assert PITCHES[thing.size][0] in text and MATERIALS[thing.material] in text
        assert scene.motion.side in text.replace("centre", "middle")
        assert scene.motion.direction.split(" to ")[-1] in text
        assert {"none": "", "wind": "soft wind", "hum": "low hum"}[scene.ambience] in text
    assert len({caption(sample_scene(1), seed) for seed in SEEDS}) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_examples(kind: str) -> None:
    for seed in range(60):
        example = make_example(seed, kind, (96, 64), 107)
        scene = example.scene
        assert scene.canvas == (96, 64) and scene.frames == 107 and 1 <= len(scene.events) <= 3
        for number in range(1, len(example.keyframes) + 1):
            assert f"<Picture {number}>" in example.prompt
        for reference in example.references:
            name = {"picture": "<Picture 1>", "clip": "<Video 1>", "sound": "<Audio 1>"}[reference.kind]
            assert name in example.prompt
    for reference in example.references:
        pixels, wave = reference.pixels(), reference.wave()
        assert (pixels is None) == (reference.kind == "sound") and (wave is None) == (reference.kind == "picture")
        if reference.kind == "sound":
            assert wave is not None and wave.shape == (2, 64_000)


def test_a_picture_is_not_described() -> None:
    for seed in range(60):
        example = make_example(seed, "picture")
        words = example.prompt.replace("<Picture 1>", "").replace(example.scene.background, "")
        assert example.scene.things[0].colour not in words and example.scene.things[0].shape not in words
        sound = make_example(seed, "picture_sound")
        assert not any(material in sound.prompt for material in MATERIALS)
        assert not any(size in sound.prompt for size in SIZES if sound.scene.motion.kind != "grow")


def test_what_continues_fits_seamlessly() -> None:
    for seed in range(60):
        example = make_example(seed, "continue", (64, 64))
        before, after = example.references[0].scene, example.scene
        last, first = before.state(np.array([56 / FPS])), after.state(np.array([0.0]))
        np.testing.assert_allclose([last.x, last.y], [first.x, first.y])
        assert (
            abs(after.state(np.array([4 / FPS])).x - first.x) + abs(after.state(np.array([4 / FPS])).y - first.y) > 0.01
        )
