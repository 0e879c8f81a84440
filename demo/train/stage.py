"""Trains the demo's text encoder and its two transformers.

Stage 1: a data set on every GPU, then all kinds of tasks with one transformer and the text encoder, gradients averaged.
Stage 2: the encoder stays; one GPU goes on with t2va and fl2va, the other one with the kinds that have references.

    python -m demo.train.stage --stage 1 --gpus 2 --data-seconds 110 --seconds 400 --until 0.42 --out out
    python -m demo.train.stage --stage 1 --gpus 2 --seconds 480 --data-seconds 40 --out out
    python -m demo.train.stage --stage 2 --gpus 2 --seconds 480 --out out
    python -m demo.train.stage --stage 2 --gpus 2 --seconds 400 --data-seconds 90 --start h3serve/weights/demo/trained

What a later command goes on from is in `--state`; `--weights` is the folder with the trained VAEs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer as Backend

from demo.train import ranks, sizes
from demo.train.dataset import Maker, load_buckets, save_buckets
from demo.train.denoiser import Trainee, new_denoiser
from demo.train.encode import make_encoders
from demo.train.flat import FlatAdam
from demo.train.loop import Clock
from demo.train.recipes import FIRST_SEED, REFERENCE_KINDS, SCENE_KINDS, SHARES, recipes, sample_captions
from demo.train.session import WORKERS, Run, Session
from demo.train.settings import Settings, read_arguments
from demo.train.text import caption_tokenizer, new_encoder
from demo.train.weights import load_audio_vae, load_video_vae
from h3serve.core.limits import Partition
from h3serve.models.audio_vae.audio_vae import AudioVAE
from h3serve.models.transformer.denoiser import to_compute_dtype
from h3serve.models.video_vae.video_vae import VideoVAE
from h3serve.weights.demo import demo_weights
from h3serve.weights.demo.demo_tokenizer import write_tokenizer
from h3serve.weights.demo.demo_trained import TOKENIZER, file_names
from h3serve.weights.formats.checksums import key
from h3serve.weights.formats.tokenizer_files import load_tokenizer

UNTRAINED = Path("untrained")
# Of stage 2, by rank.
PARTS: dict[int, tuple[Partition, tuple[str, ...]]] = {0: ("fl2va", SCENE_KINDS), 1: ("ref2va", REFERENCE_KINDS)}
REMAINING = 0.3  # of the rate at the end of stage 1
RESTART = 0.35  # of the rate at the begin of stage 2


def main() -> None:
    settings = read_arguments(__doc__)
    ranks.start(work, settings.gpus, settings)


def work(rank: int, count: int, settings: Settings) -> None:
    """What each rank does."""
    del count
    run = make_run(rank, settings)
    run.say(f"models ready after {run.clock.elapsed:.1f} s")
    begin = first_stage(run) if settings.stage == 1 else second_stage(run)
    if settings.seconds:
        session = begin()
        session.train()
        session.preview()
    if run.device.type == "cuda":
        run.say(f"at most {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB; {run.clock.elapsed:.1f} s in all")
    ranks.wait_for_all()


def make_run(rank: int, settings: Settings) -> Run:
    """Models on the rank's device; the same weights on all ranks."""
    clock, device = Clock(settings.limit_s), ranks.device_of(rank)
    torch.manual_seed(settings.seed * 1000 + rank)
    backend = shared_tokenizer(rank, settings)
    encoder, denoiser = new_encoder(backend, seed=settings.seed), new_denoiser(seed=settings.seed)
    if device.type == "cuda":
        to_compute_dtype(denoiser, torch.bfloat16)
        encoder.bfloat16()
    trainee = Trainee(encoder, denoiser).to(device)
    encoder.reset_buffers(device)
    encoders = make_encoders(*load_vaes(settings.weights, device))
    tokenizer = load_tokenizer(settings.state / "tokenizer", encoder.config)
    return Run(settings, rank, device, tokenizer, trainee, encoders, clock)


def load_vaes(folder: Path, device: torch.device) -> tuple[VideoVAE, AudioVAE]:
    """The trained ones; those of a folder called "untrained" are random, for trying out."""
    if folder != UNTRAINED:
        video = load_video_vae(folder / "video_vae.safetensors", device)
        return video, load_audio_vae(folder / "audio_vae.safetensors", device)
    generator = torch.Generator().manual_seed(0)
    video = demo_weights.video_vae(sizes.video_vae_config(), generator)
    audio = demo_weights.audio_vae(sizes.audio_vae_config(), generator)
    return video.to(device).requires_grad_(False), audio.to(device).requires_grad_(False)


def shared_tokenizer(rank: int, settings: Settings) -> Backend:
    """Made or taken from packed weights once, by the first rank."""
    folder = settings.state / "tokenizer"
    if rank == 0:
        settings.out.mkdir(parents=True, exist_ok=True)
        if not folder.exists():
            start = settings.start
            made = Backend.from_file(str(start / TOKENIZER)) if start else caption_tokenizer(sample_captions())
            write_tokenizer(made, folder)
        shutil.copy(folder / "tokenizer.json", settings.out)
    ranks.wait_for_all()
    return Backend.from_file(str(folder / "tokenizer.json"))


def first_stage(run: Run) -> Callable[[], Session]:
    add_data(run, tuple(SHARES))
    rate = run.settings.rate
    return partial(Session, run, "stage1", SHARES, together=True, peak=rate, last=REMAINING * rate)


def second_stage(run: Run) -> Callable[[], Session]:
    """From the averages of stage 1, or from packed weights with data of its own; each rank by itself."""
    settings, (name, kinds) = run.settings, PARTS[run.rank]
    if settings.start:
        load_packed(run.trainee, settings.start, name)
        add_data(run, kinds)
    else:
        first = torch.load(settings.state / "stage1.pt", map_location=run.device, weights_only=False)
        FlatAdam(run.trainee).use(first["optimizer"]["average"])
        run.buckets = load_buckets(sorted(settings.state.glob("data*_*.pt")), run.device, kinds)
    run.trainee.encoder.requires_grad_(False)
    shares = {kind: SHARES[kind] for kind in kinds}
    return partial(Session, run, f"stage2_{name}", shares, together=False, peak=RESTART * settings.rate, last=0.0)


def load_packed(trainee: Trainee, folder: Path, partition: Partition) -> None:
    """What `demo.write` packed; decoder layers that add nothing are not in the encoder's file."""
    files = file_names()
    trainee.denoiser.load_state_dict(load_file(folder / files[key("transformer", partition)]))
    found = trainee.encoder.load_state_dict(load_file(folder / files["text_encoder"]), strict=False)
    assert not found.unexpected_keys, found.unexpected_keys


def add_data(run: Run, kinds: Collection[str]) -> None:
    """The rank's data of these kinds: more if there is time for it and, to train on, what other commands left."""
    settings = run.settings
    files = sorted(settings.state.glob(f"data{run.rank}_*.pt"))
    if settings.data_seconds:
        taken = [int(file.stem.split("_")[1]) for file in files]
        made = make_data(run, kinds, max(taken, default=-1) + 1 if settings.part is None else settings.part)
        files = [file for file in files if file != made]
    if settings.seconds:
        run.buckets += load_buckets(files, run.device, kinds)
        run.say(f"samples: {run.counts(SHARES)}")


def make_data(run: Run, kinds: Collection[str], part: int) -> Path:
    """Fills the run's buckets with clips that no other rank and part has; they are also in the file that is named."""
    settings, clock = run.settings, Clock(run.settings.data_seconds)
    maker = Maker(run.encoders, run.trainee.encoder, run.tokenizer, seed=100 * part + run.rank)
    lengths = dict.fromkeys(settings.lengths, 1.0) or None
    wanted = recipes(
        1000 * settings.seed + 100 * part + run.rank, canvases=settings.canvases, seconds=lengths, kinds=kinds
    )
    first = FIRST_SEED + (settings.seed << 31) + (run.rank << 28) + (part << 24)
    maker.fill(wanted, clock, first_seed=first, most=settings.clips, workers=WORKERS)
    run.buckets, file = maker.buckets(), settings.state / f"data{run.rank}_{part}.pt"
    save_buckets(run.buckets, file)
    run.say(f"{maker.clips} clips in {len(run.buckets)} buckets after {clock.elapsed:.1f} s")
    return file


if __name__ == "__main__":
    main()
