"""A packed training batch gives what the ordinary path gives for one request after another."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from transformers import Qwen2TokenizerFast

from demo.train import denoiser as training
from demo.train import text
from demo.train.batch_plan import Bucket, Group
from demo.train.batches import Loader, arrange
from demo.train.forms import make_form
from demo.train.kernels import Segments, one_by_one, padded, training_ops
from h3serve.core import segments
from h3serve.core.encoder_tokens import SAMPLE_STEP
from h3serve.models.text_encoder.tokenizer import Tokenizer
from h3serve.models.text_encoder.vision_patches import image_grid, image_patches, video_grid, video_patches
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.models.transformer.transformer_config import TransformerConfig
from h3serve.pipeline.packing import pack
from h3serve.pipeline.predict import prepare_static
from h3serve.pipeline.prompt_builder import ShownAudio, ShownImage, ShownVideo, present
from h3serve.pipeline.schedule import Schedule, sigma_grid, step_times
from h3serve.pipeline.solver import euler_step
from h3serve.weights.demo import demo_weights
from h3serve.weights.demo.demo_tokenizer import write_tokenizer

CPU = torch.device("cpu")
CANVAS, FRAMES = (96, 64), 22
CAPTIONS = ("A red ball bounces twice.", "A large blue wooden box slides from left to right, one low knock.")
PICTURE, CLIP = (128, 128), (96, 64)


@dataclass
class Case:
    """One kind: its task, segments, and what the encoder is shown of one sample, drawn from a generator."""

    task: str
    segments: list = field(default_factory=list)
    shown: list = field(default_factory=list)


def case_of(kind: str, rng: np.random.Generator) -> Case:
    def pixels(size: tuple[int, int], frames: int = 1) -> np.ndarray:
        return rng.integers(0, 256, (frames, size[1], size[0], 3), np.uint8)

    first, last = segments.keyframe(CANVAS, is_last=False), segments.keyframe(CANVAS, is_last=True)
    picture = segments.image(PICTURE)
    match kind:
        case "t2va":
            return Case("t2va")
        case "first":
            return Case("fl2va", [first], [ShownImage(pixels(CANVAS)[0])])
        case "last":
            return Case("fl2va", [last], [ShownImage(pixels(CANVAS)[0])])
        case "both":
            return Case("fl2va", [first, last], [ShownImage(p) for p in pixels(CANVAS, 2)])
        case "picture":
            return Case("ref2va", [picture], [ShownImage(pixels(PICTURE)[0])])
        case "picture_sound":
            shown = [ShownImage(pixels(PICTURE)[0]), ShownAudio()]
            return Case("ref2va", [picture, segments.audio(24_000)], shown)
        case "motion":
            clip = segments.video(CLIP, 56, 74_667)
            return Case("ref2va", [clip], [ShownVideo(pixels(CLIP, 56), has_audio=True)])
    raise AssertionError(kind)


KINDS = ("t2va", "first", "last", "both", "picture", "picture_sound", "motion")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(text.caption_tokenizer(CAPTIONS), folder)
    return Tokenizer(Qwen2TokenizerFast.from_pretrained(folder))


@pytest.fixture(scope="module")
def trainee() -> training.Trainee:
    """Random weights everywhere, so that nothing is felt less than it will be."""
    encoder = text.new_encoder(text.caption_tokenizer(CAPTIONS))
    encoder.reset_buffers()
    config = TransformerConfig.from_dict(training.transformer())
    denoiser = Denoiser(config)
    demo_weights.fill(denoiser, torch.Generator().manual_seed(1), demo_weights.TRANSFORMER)
    return training.Trainee(encoder, denoiser)


def form_of(kind: str, tokenizer: Tokenizer):
    case = case_of(kind, np.random.default_rng(0))
    return make_form(case.task, tokenizer, case.shown, case.segments, segments.target(CANVAS, FRAMES))


def features_of(encoder, case: Case) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """What the vision tower says of one sample's pictures, one after another."""
    parts = []
    for item in case.shown:
        if isinstance(item, ShownImage):
            pixels = torch.from_numpy(item.pixels)[None, None]
            grid = image_grid(pixels.shape[3], pixels.shape[2])
        elif isinstance(item, ShownVideo):
            pixels = torch.from_numpy(item.frames[::SAMPLE_STEP])[None]
            grid = video_grid(pixels.shape[1], pixels.shape[3], pixels.shape[2])
        else:
            continue
        parts.append(text.see(encoder, text.patches_of(pixels, grid), grid))
    if not parts:
        return torch.zeros(1, 0, 96), ()
    return torch.cat([p[0] for p in parts], 1), tuple(torch.cat(d, 1) for d in zip(*(p[1] for p in parts), strict=True))


def test_patches_on_a_device_are_those_of_the_encoder():
    rng = np.random.default_rng(3)
    picture = rng.integers(0, 256, (64, 96, 3), np.uint8)
    theirs, grid = image_patches(picture)
    ours = text.patches_of(torch.from_numpy(picture)[None, None], grid)[0]
    assert (ours - theirs).abs().max() <= 4.01 / 255  # two of 255 on the scale from -1 to 1
    clip = rng.integers(0, 256, (56, 64, 96, 3), np.uint8)
    theirs, grid = video_patches(clip)
    assert torch.equal(text.patches_of(torch.from_numpy(clip[::SAMPLE_STEP].copy())[None], grid)[0], theirs)


@pytest.mark.parametrize("attention", [one_by_one, padded])
def test_velocities_are_those_of_single_requests(trainee, tokenizer, attention):
    rng, generator = np.random.default_rng(5), torch.Generator().manual_seed(5)

    def rows(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    buckets, cases, groups = [], {}, []
    for number, kind in enumerate(KINDS):
        form = form_of(kind, tokenizer)
        cases[kind] = [case_of(kind, rng) for _ in range(2)]
        seen = [features_of(trainee.encoder, case) for case in cases[kind]]
        layout = form.layout
        buckets.append(
            Bucket(
                kind=kind,
                form=form,
                prompts=[[np.array(tokenizer.ids(caption))] for caption in CAPTIONS],
                video=rows(2, len(layout.video_index) - layout.condition_video_rows, 96),
                audio=rows(2, len(layout.audio_index) - layout.condition_audio_rows, 32),
                condition_video=rows(2, layout.condition_video_rows, 96),
                condition_audio=rows(2, layout.condition_audio_rows, 32),
                features=torch.cat([s[0] for s in seen]),
                deep=tuple(torch.cat(d) for d in zip(*(s[1] for s in seen), strict=True)),
            )
        )
        samples = np.array([1, 0] if kind == "both" else [0, 1])
        groups.append(Group(number, samples, tuple(buckets[-1].prompts[s][0] for s in samples)))
    used = sum(b.form.rows * 2 + sum(len(b.form.prefix) + len(p[0]) for p in b.prompts) for b in buckets)
    plan = arrange(buckets, groups, used + 19)
    assert plan.row_lengths[-1] == 19 and plan.samples == 14
    arrays = plan.on(CPU)
    sigmas = training.draw_sigmas(14, CPU, generator)
    noised = training.add_noise(plan, arrays, buckets, sigmas, generator)
    kernels = training.Kernels(attention, training_ops())
    with torch.no_grad():
        video, audio = training.velocities(trainee, plan, arrays, noised, kernels)

    splits = {"video": [], "audio": [], "condition_video": [], "condition_audio": []}
    for group in groups:
        bucket = buckets[group.bucket]
        for name, sizes in splits.items():
            sizes += [getattr(bucket, name).shape[1]] * 2
    parts = {
        "video": video.split(splits["video"]),
        "audio": audio.split(splits["audio"]),
    }
    given = {
        name: torch.cat([getattr(noised, name)]).split([sum(splits[f"condition_{name}"]), sum(splits[name])])
        for name in ("video", "audio")
    }
    number = 0
    for group in groups:
        bucket, form = buckets[group.bucket], buckets[group.bucket].form
        for sample in group.samples:
            case = cases[bucket.kind][sample]
            name = "keyframes" if case.task == "fl2va" else "references"
            shown = present(case.task, CAPTIONS[sample], tokenizer, **{name: case.shown})
            states = trainee.encoder.encode(shown.inputs)
            layout = pack(shown.tags.numpy(), case.segments, form.target)
            times = step_times(
                float(1 - sigmas[0][number]), float(1 - sigmas[1][number]), np.unique(layout.kinds), 0.999, 1.0
            )
            transformer = trainee.denoiser.transformer

            def mine(name: str, number: int = number) -> torch.Tensor:
                condition = given[name][0].split(splits[f"condition_{name}"])[number]
                return torch.cat([condition, given[name][1].split(splits[name])[number]])

            with torch.no_grad():
                expected = transformer(
                    mine("video"),
                    mine("audio"),
                    static=prepare_static(transformer, states, layout),
                    modulation=trainee.denoiser.modulation(torch.from_numpy(times.values)),
                    timestep_index=torch.from_numpy(times.slots[layout.kinds]),
                )
            for got, wanted in zip((parts["video"][number], parts["audio"][number]), expected, strict=True):
                assert torch.linalg.norm(got - wanted) <= 3e-3 * torch.linalg.norm(wanted), bucket.kind
            number += 1
    assert number == 14


def test_the_target_velocity_leads_to_the_data(trainee, tokenizer):
    """From any noise level, as the scheduler means it: its last step at that level gives the clean rows."""
    form = form_of("t2va", tokenizer)
    layout, generator = form.layout, torch.Generator().manual_seed(2)
    bucket = Bucket(
        "t2va",
        form,
        [[np.array([5])]] * 3,
        torch.randn(3, len(layout.video_index), 96, generator=generator),
        torch.randn(3, len(layout.audio_index), 32, generator=generator),
        *(torch.zeros(3, 0, width) for width in (96, 32, 96)),
    )
    plan = arrange([bucket], [Group(0, np.arange(3), tuple(p[0] for p in bucket.prompts))], 3 * (form.rows + 1))
    schedule = Schedule(sigma_grid(20, 12.0))
    sigma = schedule.sigmas[[3, 11, 19]]
    noised = training.add_noise(plan, plan.on(CPU), [bucket], (sigma, sigma), generator)
    rows = noised.video.view(3, -1, 96)
    clean = rows + sigma[:, None, None] * noised.video_velocity.view(3, -1, 96)
    torch.testing.assert_close(clean, bucket.video)
    last = euler_step(schedule, rows[2], noised.video_velocity.view(3, -1, 96)[2], 19)
    torch.testing.assert_close(last, bucket.video[2])


def test_gradients_of_tables_and_rows_are_exact():
    """`Expansion` against plain indexing."""
    from demo.train.kernels import Expansion

    generator = torch.Generator().manual_seed(0)
    table = torch.randn(7, 2, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    index = torch.randint(7, (40,), generator=generator)
    weight = torch.randn(40, 2, 5, generator=generator, dtype=torch.float64)
    (ours,) = torch.autograd.grad((Expansion(index, 7, torch.float64)(table) * weight).sum(), table)
    (theirs,) = torch.autograd.grad((table[index] * weight).sum(), table)
    torch.testing.assert_close(ours, theirs)


def test_padded_attention_has_the_references_gradients():
    generator = torch.Generator().manual_seed(0)
    lengths = (5, 17, 1, 9)
    bounds = torch.tensor([0, 5, 22, 23, 32], dtype=torch.int32)
    qkv = torch.randn(3, 32, 2, 8, generator=generator, requires_grad=True)
    results = []
    for attention in (one_by_one, padded):
        out = attention(*qkv, Segments(bounds, lengths, 17))
        results.append((out.detach(), torch.autograd.grad(out.square().sum(), qkv)[0]))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_a_loader_fills_its_rows_and_repeats_itself(tokenizer):
    form = form_of("first", tokenizer)
    layout = form.layout
    bucket = Bucket(
        "first",
        form,
        [[np.array([5, 6, 7]), np.array([5])]] * 4,
        torch.zeros(4, len(layout.video_index) - layout.condition_video_rows, 96),
        torch.zeros(4, len(layout.audio_index), 32),
        torch.zeros(4, layout.condition_video_rows, 96),
        torch.zeros(4, 0, 32),
        torch.zeros(4, len(form.vision_places), 96),
    )
    rows = 10 * (form.rows + len(form.prefix) + 3)
    loader = Loader([bucket], {"first": 1.0, "t2va": 2.0}, rows, seed=(1, 0), workers=1)
    plans = loader.plans(start=3)
    first = next(plans)
    plans.close()
    assert sum(first.row_lengths) == rows and first.samples >= 10
    again = loader.plan(3)
    assert torch.equal(first.on(CPU).ids, again.on(CPU).ids) and torch.equal(
        first.on(CPU).positions, again.on(CPU).positions
    )
    assert float(first.on(CPU).video_weights.sum()) == pytest.approx(1.0, abs=1e-4)


def test_noise_levels_reach_both_ends():
    video, audio = training.draw_sigmas(4000, CPU, torch.Generator().manual_seed(0))
    assert video.min() >= 0.001 - 1e-9 and video.max() <= 1.0
    assert (video < 0.4).float().mean() > 0.05 and (video > 0.99).float().mean() > 0.05
    assert (audio < 0.2).float().mean() > 0.05 and (audio > 0.95).float().mean() > 0.08


def test_a_new_denoiser_says_nothing_and_can_tell_early_steps_apart():
    denoiser = training.new_denoiser()
    times = 1 - sigma_grid(20, 12.0)[:-1]
    embedded = denoiser.modulation.embed(times)
    assert torch.isfinite(embedded).all() and 0.1 < embedded.std() < 5
    steps = (embedded[1:] - embedded[:-1]).norm(dim=1) / embedded.norm(dim=1).mean()
    assert steps.min() > 0.01, steps
    assert all(float(p.abs().max()) == 0 for n, p in denoiser.named_parameters() if "adaln_proj" in n)
