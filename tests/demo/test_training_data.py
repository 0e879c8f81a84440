"""What the training set holds is what a request would hold; what an optimizer step does is AdamW."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from demo.train import stage, text
from demo.train.batches import Loader, arrange
from demo.train.dataset import Maker, load_buckets, save_buckets
from demo.train.denoiser import Kernels, Trainee, add_noise, draw_sigmas, losses, new_denoiser
from demo.train.encode import audio_rows, make_encoders, patch_rows, video_moments
from demo.train.flat import BETAS, EPS, FlatAdam, rate_at
from demo.train.graph import Replayed
from demo.train.loop import Clock
from demo.train.padding import pad
from demo.train.preview import sample
from demo.train.recipes import KEYFRAMES, Recipe, recipes, sample_captions, wordings
from demo.train.session import Run, Session
from demo.train.settings import read_arguments
from demo.world.tasks import make_example
from h3serve.models.audio_vae.audio_vae import AudioVAEConfig
from h3serve.models.transformer.denoiser import to_compute_dtype
from h3serve.models.video_vae.video_vae import normalize_pixels
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig
from h3serve.pipeline.packing import video_to_rows
from h3serve.weights.demo import demo_sizes, demo_weights
from h3serve.weights.demo.demo_tokenizer import write_tokenizer
from h3serve.weights.formats.tokenizer_files import load_tokenizer

CPU = torch.device("cpu")
PLAIN = {"latents_mean": [0.1] * 24, "latents_std": [0.7] * 24}


@pytest.fixture(scope="module")
def encoders():
    generator = torch.Generator().manual_seed(0)
    audio = demo_weights.statistics(32, generator, mean=0.25, std=(1.4, 2.8))
    return make_encoders(
        demo_weights.video_vae(VideoVAEConfig.from_dict(demo_sizes.video_vae("diffusers", PLAIN)), generator),
        demo_weights.audio_vae(AudioVAEConfig.from_dict(demo_sizes.audio_vae("diffusers", audio)), generator),
    )


@pytest.fixture(scope="module")
def maker(encoders, tmp_path_factory) -> Maker:
    """Two examples of two families, 22 frames long."""
    folder = tmp_path_factory.mktemp("tokenizer")
    backend = text.caption_tokenizer(sample_captions(100))
    write_tokenizer(backend, folder)
    encoder = text.new_encoder(backend)
    encoder.reset_buffers()
    maker = Maker(encoders, encoder, load_tokenizer(folder, encoder.config))
    for family in ("t2va", "picture_sound"):
        maker.add(maker.prepare(Recipe(family, (64, 64), 22), 5, 2))
    return maker


@pytest.mark.parametrize("frames", [1, 22])
def test_moments_of_many_clips_are_those_of_each(encoders, frames):
    clips = torch.randint(0, 256, (3, frames, 32, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    ours = video_moments(encoders, clips)
    for number, clip in enumerate(clips):
        theirs = encoders.video.encode(normalize_pixels(clip))
        for got, wanted in zip(ours, theirs, strict=True):
            torch.testing.assert_close(got[number : number + 1], wanted, atol=2e-4, rtol=1e-3)


def test_rows_of_many_latents_are_those_of_each():
    latents = torch.randn(2, 24, 3, 4, 6)
    for ours, latent in zip(patch_rows(latents), latents, strict=True):
        assert torch.equal(ours, video_to_rows(latent[None]))


def test_sound_rows_of_many_are_those_of_each(encoders):
    wave = torch.randn(2, 2, 4100, generator=torch.Generator().manual_seed(2)) * 0.1
    for ours, one in zip(audio_rows(encoders, wave), wave, strict=True):
        torch.testing.assert_close(ours.float(), encoders.audio.encode(one), atol=4e-3, rtol=4e-3)


def test_buckets_share_clips_and_survive_a_file(maker, tmp_path):
    buckets = maker.buckets()
    kinds = [bucket.kind for bucket in buckets]
    assert kinds == ["t2va", *KEYFRAMES, "picture_sound"]
    assert buckets[0].video.data_ptr() == buckets[1].video.data_ptr()
    for bucket in buckets:
        layout = bucket.form.layout
        assert bucket.condition_video.shape[1] == layout.condition_video_rows
        assert bucket.condition_audio.shape[1] == layout.condition_audio_rows
        assert bucket.video.shape[1] == len(layout.video_index) - layout.condition_video_rows
        assert bucket.audio.shape[1] == len(layout.audio_index) - layout.condition_audio_rows
        assert bucket.features.shape[1] == len(bucket.form.vision_places)
    both, first = buckets[3], buckets[1]
    assert torch.equal(both.condition_video[:, :4], first.condition_video)
    save_buckets(buckets, tmp_path / "data.pt")
    again = load_buckets([tmp_path / "data.pt"], torch.device("cpu"), kinds[1:])
    assert [b.kind for b in again] == kinds[1:]
    assert torch.equal(again[0].video, buckets[1].video) and torch.equal(again[-1].deep[2], buckets[-1].deep[2])
    assert again[0].video.data_ptr() == again[1].video.data_ptr()


def test_sampling_goes_through_the_ordinary_loop(maker):
    """A new denoiser's velocity is zero: the noise comes out as it went in."""
    trainee = Trainee(maker.text_encoder, new_denoiser())
    bucket = maker.buckets()[-1]
    drawn = sample(trainee, bucket, 1, steps=2)
    assert drawn.video.shape == bucket.video[1].shape and drawn.audio.shape == bucket.audio[1].shape
    assert drawn.video.std() == pytest.approx(1.0, abs=0.1)


def test_wordings_are_those_of_the_kind():
    example = make_example(3, "t2va", (64, 64), 107)
    assert wordings(example, "both")[0].startswith("At 0.00 seconds into the target video, <Picture 1> is fully")
    assert len(set(wordings(example, "t2va"))) > 2
    drawn = [recipe for _, recipe in zip(range(300), recipes(1), strict=False)]
    assert {recipe.family for recipe in drawn} == {"t2va", "picture", "picture_sound", "motion", "continue"}
    assert {recipe.frames for recipe in drawn} == {107, 124, 158}


def test_a_flat_step_is_adamw():
    torch.manual_seed(0)
    ours, theirs = (nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    flat = FlatAdam(ours, clip=1e9)
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2, betas=BETAS, eps=EPS, weight_decay=0.0)
    for step in range(4):
        x = torch.randn(6, 5, generator=torch.Generator().manual_seed(step))
        for module in (ours, theirs):
            module(x).square().sum().backward()
        flat.step(1e-2)
        reference.step()
        reference.zero_grad()
    for got, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_flat_step_clips_keeps_dtypes_and_forgets_nan():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).bfloat16())
    flat = FlatAdam(module)
    module[0].weight.grad.fill_(float("nan"))
    before = flat.master.clone()
    flat.step(1e-2)
    assert torch.equal(flat.master, before) and int(flat.skipped) == 1
    module[1].weight.grad.fill_(100.0)
    flat.step(1e-2)
    assert module[1].weight.dtype == torch.bfloat16 and not torch.equal(flat.master, before)
    assert flat.norm > 1 and torch.equal(
        module[1].weight.float(), flat._view(flat.master, "1.weight").bfloat16().float()
    )
    state = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in flat.state().items()}
    flat.use(torch.zeros_like(flat.master))
    flat.restore(state)
    assert torch.equal(flat.master, state["master"]) and flat.steps == 2


def test_rates_warm_up_and_end_where_they_should():
    assert rate_at(0.0, 0, peak=1.0, last=0.2, warmup=10) == pytest.approx(0.1)
    assert rate_at(0.0, 99, peak=1.0, last=0.2, warmup=10) == pytest.approx(1.0)
    assert rate_at(1.0, 99, peak=1.0, last=0.2, warmup=10) == pytest.approx(0.2)
    assert np.all(np.diff([rate_at(f, 99, peak=1.0, last=0.0, warmup=1) for f in np.linspace(0, 1, 9)]) < 0)


def test_a_session_stops_writes_and_goes_on(maker, encoders, tmp_path):
    def session(seconds: str, until: str = "1") -> Session:
        words = ["--stage", "1", "--seconds", seconds, "--until", until, "--rows", "600", "--seed", "3"]
        words += ["--state", str(tmp_path / "state"), "--out", str(tmp_path / "out")]
        trainee = Trainee(maker.text_encoder, new_denoiser(seed=3))
        run = Run(
            read_arguments(None, words),
            0,
            torch.device("cpu"),
            maker.tokenizer,
            trainee,
            encoders,
            Clock(1e9),
            maker.buckets(),
        )
        return Session(run, "stage1", {"t2va": 0.5, "picture_sound": 0.5}, together=True, peak=1e-3, last=1e-4)

    first = session("1.5", until="0.5")
    first.train()
    first.preview()
    steps = first.adam.steps
    assert steps >= 1 and first.fraction == 0.5 and first.samples >= steps
    written = {file.name for file in (tmp_path / "out").iterdir()}
    assert written == {"curve_stage1.json", "stage1_denoiser.safetensors", "stage1_encoder.safetensors", "stage1.png"}
    held = load_file(tmp_path / "out" / "stage1_denoiser.safetensors")
    assert held["modulation.time_embedder.proj_in.weight"].dtype == torch.float32
    assert held["transformer.blocks.0.attn.qkv_proj.weight"].dtype == torch.bfloat16
    assert held.keys() == new_denoiser().state_dict().keys()
    again = session("1.5")
    assert again.adam.steps == steps and again.fraction == 0.5
    torch.testing.assert_close(again.adam.average, first.adam.average)
    again.train()
    assert again.adam.steps > steps and again.fraction == 1.0
    assert again.curve.entries[: len(first.curve.entries)] == first.curve.entries
    padded_loader = Loader(again.run.buckets, {"first": 1.0, "t2va": 1.0}, 600, seed=(4,), padded=True)
    for _ in range(9):  # the quicker of two equal ways is a matter of luck here
        again._try_to_replay(padded_loader)
        if again.replayed:
            break
    assert again.loader is padded_loader
    before = again.adam.master.clone()
    again.step(padded_loader.plan(7))
    assert torch.isfinite(again.totals).all() and not torch.equal(again.adam.master, before)


def test_half_precision_has_the_gradients_of_float32(maker):
    """As on a GPU: bfloat16 weights with float32 islands. Nothing is zero, so that every path counts."""
    denoiser = new_denoiser()
    demo_weights.fill(denoiser, torch.Generator().manual_seed(1), demo_weights.TRANSFORMER)
    buckets = maker.buckets()
    plan = Loader(buckets, {"t2va": 0.5, "picture_sound": 0.5}, 900, seed=(1,)).plan(0)
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        trainee = Trainee(copy.deepcopy(maker.text_encoder).to(dtype), to_compute_dtype(copy.deepcopy(denoiser), dtype))
        trainee.encoder.reset_buffers()
        generator = torch.Generator().manual_seed(4)
        sigmas = draw_sigmas(plan.samples, torch.device("cpu"), generator)
        noised = add_noise(plan, plan.on(CPU), buckets, sigmas, generator)
        video, audio, *_ = losses(trainee, plan, plan.on(CPU), noised, Kernels())
        (video + audio).backward()
        gradients = {n: p.grad.float() for n, p in trainee.named_parameters() if p.grad is not None}
        found[dtype] = (float(video), float(audio)), gradients
    wide, half = found[torch.float32], found[torch.bfloat16]
    assert half[0] == pytest.approx(wide[0], rel=0.03)
    assert half[1].keys() == wide[1].keys() and len(wide[1]) > 100
    for name, wanted in wide[1].items():
        cosine = torch.cosine_similarity(half[1][name].flatten(), wanted.flatten(), 0)
        assert cosine > 0.9, (name, cosine)


def test_a_padded_batch_has_the_losses_and_gradients_of_a_plain_one(maker):
    """Also when it is replayed with what an earlier batch left in the tensors."""
    denoiser = new_denoiser()
    demo_weights.fill(denoiser, torch.Generator().manual_seed(1), demo_weights.TRANSFORMER)
    trainee, buckets = Trainee(maker.text_encoder, denoiser), maker.buckets()
    loader = Loader(buckets, {"t2va": 0.3, "both": 0.3, "picture_sound": 0.4}, 1100, seed=(2,), padded=True)
    plans = [
        arrange(buckets, loader.choice.groups(loader.capacity.room, np.random.default_rng(n)), 1100) for n in (0, 1, 2)
    ]
    whole = [pad(plan, loader.capacity) for plan in plans]
    assert len({(plan.ints, plan.floats, len(plan.row_lengths)) for plan in whole}) == 1
    assert sum(whole[0].row_lengths) == 1100 and plans[0].samples < whole[0].places

    def noised_of(plan, number: int):
        generator = torch.Generator().manual_seed(number)
        sigmas = draw_sigmas(loader.capacity.samples, CPU, generator)
        return add_noise(plan, plan.on(CPU), buckets, tuple(s[: plan.places] for s in sigmas), generator)

    def gradients() -> dict[str, torch.Tensor]:
        found = {n: p.grad.clone() for n, p in trainee.named_parameters() if p.grad is not None}
        trainee.zero_grad()
        return found

    trainee.zero_grad()
    replayed = Replayed(trainee, whole[0], noised_of(whole[0], 0), Kernels())
    for number in (0, 1, 2, 1):
        plan, padded_plan = plans[number], whole[number]
        video, audio, *_ = losses(trainee, plan, plan.on(CPU), noised_of(plan, number), Kernels())
        (video + audio).backward()
        wanted = gradients()
        got = replayed(padded_plan, padded_plan.sent(CPU), noised_of(padded_plan, number))
        torch.testing.assert_close(got, torch.stack([video.detach(), audio.detach()]), atol=1e-5, rtol=1e-5)
        for name, gradient in gradients().items():
            torch.testing.assert_close(gradient, wanted[name], atol=2e-5, rtol=2e-3, msg=name)


def test_packed_weights_are_for_stage_2(capsys):
    words = ["--seconds", "1", "--start", "trained"]
    assert read_arguments(None, ["--stage", "2", *words]).start == Path("trained")
    with pytest.raises(SystemExit):
        read_arguments(None, ["--stage", "1", *words])
    assert "--start is for stage 2" in capsys.readouterr().err


def test_data_of_several_commands_are_all_different_and_all_used(maker, monkeypatch, tmp_path):
    """One command without training leaves its data for others; a number given is kept, the next one comes behind it."""
    monkeypatch.setattr(stage, "WORKERS", 0)
    monkeypatch.setattr(stage, "recipes", lambda *_, **__: itertools.repeat(Recipe("t2va", (64, 64), 22)))

    def command(*words: str) -> Run:
        settings = read_arguments(None, ["--stage", "2", "--state", str(tmp_path), "--clips", "4", *words])
        run = Run(settings, 0, CPU, maker.tokenizer, Trainee(maker.text_encoder, nn.Module()), maker.encoders, Clock(9))
        stage.add_data(run, ["t2va"])
        return run

    for words in ([], ["--part", "7"], []):
        command("--seconds", "0", "--data-seconds", "60", *words)
    assert {file.name for file in tmp_path.glob("*.pt")} == {"data0_0.pt", "data0_7.pt", "data0_8.pt"}
    run = command("--seconds", "1")
    assert run.counts(["t2va", "picture"]) == {"t2va": 12, "picture": 0}
    assert len({clip.numpy().tobytes() for bucket in run.buckets for clip in bucket.video}) == 12
    again = command("--seconds", "1", "--data-seconds", "60", "--part", "7")
    assert again.counts(["t2va"]) == {"t2va": 12}  # what is made anew counts once
