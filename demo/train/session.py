"""One rank's part of a training run: models, data, kernels, and the loop until the time is over."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from demo.train import ranks
from demo.train.batch_plan import Arrays, Bucket, Plan
from demo.train.batches import Loader
from demo.train.denoiser import Kernels, Noised, Trainee, add_noise, draw_sigmas, losses, padded
from demo.train.device import fastest
from demo.train.encode import Encoders
from demo.train.flat import FlatAdam, rate_at
from demo.train.graph import Replayed
from demo.train.kernels import choose_attention, training_ops, varlen
from demo.train.loop import Clock, Curve, Every, write_whole
from demo.train.preview import save_preview
from demo.train.settings import Settings
from h3serve.models.text_encoder.tokenizer import Tokenizer
from h3serve.models.transformer.denoiser import param_dtype

RESERVE_S = 35  # after training, for files and previews
CHECK = {"cuda": 20, "cpu": 1}  # steps between two looks at the clock
WARMUP = 200  # steps
LOG_S, KEEP_S = 5, 60
WORKERS = 3  # processes that make batches, for each rank


@dataclass
class Run:
    """One rank's models and data; `clock` measures the whole command."""

    settings: Settings
    rank: int
    device: torch.device
    tokenizer: Tokenizer
    trainee: Trainee
    encoders: Encoders
    clock: Clock
    buckets: list[Bucket] = field(default_factory=list)

    def counts(self, kinds: Iterable[str]) -> dict[str, int]:
        """How many samples of each kind there are."""
        return {kind: sum(len(b) for b in self.buckets if b.kind == kind) for kind in kinds}

    def say(self, text: str) -> None:
        print(f"rank {self.rank}: {text}", flush=True)  # noqa: T201


class Session:
    """Trains what of `run.trainee` wants gradients, from where an earlier session of this name stopped.

    `together`: gradients are averaged over all ranks, and the first one writes; else every rank is alone. The rate
    falls from `peak` to `last`.
    """

    def __init__(
        self, run: Run, name: str, shares: Mapping[str, float], *, together: bool, peak: float, last: float
    ) -> None:
        self.run, self.name, self.together = run, name, together
        self.peak, self.last = peak, last
        self.writes = run.rank == 0 or not together
        self.state = run.settings.state / f"{name}.pt"
        self.adam = FlatAdam(run.trainee)
        self.before, entries = self._restored()
        settings = run.settings
        seed = settings.seed, settings.stage, run.rank
        loader = partial(Loader, run.buckets, shares, settings.rows, seed=seed, workers=WORKERS)
        self.loader: Loader = loader()
        self.replayed: Replayed | None = None
        self.kernels = choose_kernels(run, self.loader)
        if self.kernels.attention is varlen and settings.graph:
            self._try_to_replay(loader(padded=True))
        self.adam.forget_gradients()
        seconds = min(settings.seconds, settings.limit_s - run.clock.elapsed - RESERVE_S)
        self.clock = Clock(max(1.0, seconds))
        folder = settings.out if self.writes else settings.state / f"rank{run.rank}"
        facts = {"rows": settings.rows, "peak_rate": peak, "different_samples": run.counts(shares)}
        self.curve = Curve(folder / f"curve_{name}.json", facts)
        self.curve.entries += entries
        self.fraction, self.logged, self.samples = self.before, self.adam.steps, 0
        self.waited = 0.0  # seconds, for batches
        self.totals = torch.zeros(2, device=run.device)

    def train(self) -> None:
        """Until the clock is done; the state is written every minute, what is worth keeping also at the end."""
        self.run.say(f"training begins after {self.run.clock.elapsed:.1f} s, for {self.clock.seconds:.0f} s")
        log, keep = Every(LOG_S), Every(KEEP_S)
        plans = self.loader.plans(self.adam.steps)
        while True:
            began = time.monotonic()
            plan = next(plans)
            self.waited += time.monotonic() - began
            self.step(plan)
            if self.adam.steps % CHECK[self.run.device.type]:
                continue
            done = self._look_at_the_clock()
            if log() or done:
                self._log()
            if done:
                break
            if keep() and self.writes:
                self.remember()
        plans.close()
        if self.writes:
            self.remember()

    def step(self, plan: Plan) -> None:
        """One batch; nothing in it waits for the device."""
        self.totals += self.gradients(plan)
        self.adam.step(self.rate, ranks.mean_over_ranks if self.together else None)
        self.samples += plan.samples

    def gradients(self, plan: Plan) -> Tensor:
        """(video, audio) loss [2]; gradients are where the optimizer looks for them."""
        device = self.run.device
        buffer = plan.sent(device)
        arrays = plan.cut(buffer)
        noised = add_noise(plan, arrays, self.run.buckets, draw_sigmas(plan.places, device))
        if self.replayed:
            return self.replayed(plan, buffer, noised)
        video, audio, *_ = losses(self.run.trainee, plan, arrays, noised, self.kernels)
        (video + audio).backward()
        return torch.stack([video.detach(), audio.detach()])

    @property
    def rate(self) -> float:
        return rate_at(self.fraction, self.adam.steps, peak=self.peak, last=self.last, warmup=WARMUP)

    def remember(self) -> None:
        """The state for a later session, and the averaged weights as they go into a checkpoint."""
        held = {"optimizer": self.adam.state(), "fraction": self.fraction, "curve": self.curve.entries}
        write_whole(self.state, lambda partial: torch.save(held, partial))
        weights, averages = self.run.trainee.state_dict(), self.adam.averages()
        for part in {name.split(".", 1)[0] for name in averages}:
            own = {n.split(".", 1)[1]: averages.get(n, t) for n, t in weights.items() if n.startswith(part + ".")}
            save_part(own, self.run.settings.out / f"{self.name}_{part}.safetensors")

    def preview(self) -> None:
        """Pictures of what the averaged weights make; they stay in the model."""
        self.adam.use(self.adam.average)
        if self.writes:
            save_preview(
                self.run.trainee, self.run.encoders, self.run.buckets, self.run.settings.out / f"{self.name}.png"
            )

    def _try_to_replay(self, loader: Loader) -> None:
        """Takes padded batches and a recorded step if that works, is right for another batch too, and is faster."""
        device = self.run.device
        recorded, plan = itertools.islice((p for p in map(loader.plan, itertools.count()) if p.sees), 2)

        def noised_of(plan: Plan, arrays: Arrays) -> Noised:
            return add_noise(plan, arrays, self.run.buckets, draw_sigmas(plan.places, device))

        try:
            replayed = Replayed(self.run.trainee, recorded, noised_of(recorded, recorded.on(device)), self.kernels)
            buffer = plan.sent(device)
            arrays = plan.cut(buffer)
            noised = noised_of(plan, arrays)
            whole = padded(noised, plan, arrays)

            def eager() -> None:
                video, audio, *_ = losses(self.run.trainee, plan, arrays, whole, self.kernels)
                (video + audio).backward()

            def replay() -> None:
                replayed(plan, buffer, noised)

            wanted, got = self._gradients_of(eager), self._gradients_of(replay)
            error = float((got - wanted).norm() / wanted.norm())
            name = fastest({"eager": eager, "replayed": replay}, device, repeats=10)
        except Exception as problem:  # whatever cannot be recorded
            self.run.say(f"no replay: {type(problem).__name__}: {problem}"[:600])
            return
        self.run.say(f"replayed gradients differ by {error:.4f}; {name}")
        if name == "replayed" and error < 0.05:
            self.loader, self.replayed = loader, replayed

    def _gradients_of(self, trial: Callable[[], None]) -> Tensor:
        self.adam.forget_gradients()
        trial()
        return torch.cat([self.adam.gradient[: self.adam.split], self.adam.narrow_gradient.float()])

    def _restored(self) -> tuple[float, list[dict[str, float]]]:
        """Part of the time that an earlier session used up, and its loss curve."""
        if not self.state.exists():
            return 0.0, []
        held = torch.load(self.state, map_location=self.run.device, weights_only=False)
        self.adam.restore(held["optimizer"])
        return float(held["fraction"]), held["curve"]

    def _look_at_the_clock(self) -> bool:
        until = self.run.settings.until
        now = self.before + (until - self.before) * self.clock.fraction
        self.fraction = ranks.same_everywhere(now, self.run.device) if self.together else now
        return self.fraction >= until

    def _log(self) -> None:
        video, audio = (self.totals / max(1, self.adam.steps - self.logged)).tolist()
        norm, skipped = float(self.adam.norm), float(self.adam.skipped)
        self.curve.add(
            step=self.adam.steps,
            seconds=self.clock.elapsed,
            samples=self.samples,
            waited=self.waited,
            video=video,
            audio=audio,
            rate=self.rate,
            norm=norm,
            skipped=skipped,
        )
        self.logged = self.adam.steps
        self.totals.zero_()


def save_part(tensors: dict[str, Tensor], file: Path) -> None:
    """bfloat16 with float32 islands, by h3serve's names."""
    held = {name: t.to("cpu", param_dtype(name, torch.bfloat16)).contiguous() for name, t in tensors.items()}
    write_whole(file, lambda partial: save_file(held, partial, {"format": "pt"}))


def choose_kernels(run: Run, loader: Loader) -> Kernels:
    """The quickest way to compute a batch here, from a few trials."""
    attention = choose_attention(run.device, run.trainee.denoiser.transformer.compute_dtype)
    plain = Kernels(attention, training_ops())
    if run.device.type == "cpu":
        return plain
    plan = loader.plan(0)
    arrays = plan.on(run.device)
    noised = add_noise(plan, arrays, run.buckets, draw_sigmas(plan.samples, run.device))
    found: dict[str, Tensor] = {}

    def trial(name: str, kernels: Kernels) -> None:
        try:
            video, audio, *_ = losses(run.trainee, plan, arrays, noised, kernels)
            (video + audio).backward()
        except Exception as problem:  # whatever a compiler lacks
            raise RuntimeError(f"{type(problem).__name__}: {problem}") from problem
        found[name] = (video + audio).detach()

    ways = {"plain": plain, "compiled": Kernels(attention, training_ops(partial(torch.compile, dynamic=False)))}
    name = fastest({n: partial(trial, n, kernels) for n, kernels in ways.items()}, run.device, repeats=5)
    run.say(f"{plan.samples} samples a batch; losses { {n: round(float(v), 4) for n, v in found.items()} }; {name}")
    if run.settings.profile:
        run.say(profile_of(partial(trial, name, ways[name])))
    return ways[name]


def profile_of(trial: partial[None]) -> str:
    """Kernels by their time in three repeats."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(3):
            trial()
        torch.cuda.synchronize()
    table: str = profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=24, max_name_column_width=60)
    return table
