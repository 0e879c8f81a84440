"""All speed figures of one GPU, part by part, in one process: random weights of the released sizes.

    python bench/speed_h200.py OUT [--only step5,decode] [--limit 390] [--tiny]

Writes OUT/speed.md and OUT/speed.json after every part, so that a run that is cut short leaves what it has seen; a
part that fails says so and the parts behind it still run. Parts that would end after `--limit` seconds are left out.
`--tiny` runs the same code with demo sizes on a CPU.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from bench.report import Figure, Report, machine
from bench.speed import adapters, growth_command, text_encoder, transformer_step, video_vae, whole_request
from bench.speed.timing import alternate, sustained
from bench.synthetic_engine import synthetic_engine
from bench.synthetic_weights import synthetic_component
from h3serve.models.module_tensors import empty
from h3serve.models.transformer.modulation import ModulationNetwork
from h3serve.pipeline.engine import Engine
from h3serve.pipeline.generator import Generator
from h3serve.pipeline.schedule import default_times
from h3serve.runtime.adaln.modulation_tables import Direct, Scheduled, Steps, key_of
from h3serve.runtime.adaln.rebuild import projections_of
from h3serve.weights.demo import demo_sizes
from h3serve.weights.demo.demo_tokenizer import build_tokenizer
from h3serve.weights.formats.released_sizes import RELEASED

PROMPT = "A red fox trots through a snowy forest while the wind rises and snow crunches underfoot. " * 6
TIERS = ("exact", "lossless-plain", "lossless", "lossless-fp8", "fast")
# Seconds that each part is expected to take on an H200, building of its networks included.
PARTS: Mapping[str, float] = {
    "step5": 140,
    "adapters": 130,
    "block_error": 12,
    "tiles8": 14,
    "decode": 30,
    "step15": 125,
    "growth": 42,
    "small_error": 25,
    "encode": 25,
    "text": 15,
    "decode_tiles": 28,
    "peak_fp8": 20,
    "request_fp8": 45,
    "request4": 75,
    "request50": 300,
}


class Made:
    """Modulation of a few schedules, computed ahead: the projections then need no memory, as in a loaded engine."""

    def __init__(self, network: ModulationNetwork, schedules: Sequence[Steps]) -> None:
        self._made: dict[tuple[Any, ...], Scheduled] = {}
        with ExitStack() as stack:
            for steps in schedules:
                self._made[self._name(steps)] = stack.enter_context(Direct(network).schedule(steps))
        for projection in projections_of(network):
            empty(projection)

    @contextmanager
    def schedule(self, steps: Steps) -> Iterator[Scheduled]:
        yield self._made[self._name(steps)]

    @staticmethod
    def _name(steps: Steps) -> tuple[Any, ...]:
        return tuple(key_of(timesteps) for timesteps in steps)


def without_projections(engine: Engine, evaluations: int) -> Engine:
    """With tables for `evaluations`, for a warm-up of one, and as many as the default schedule holds."""
    schedules = [default_times("fl2va", engine.sigma_shifts["fl2va"], count) for count in (evaluations, 1, 50)]
    return replace(engine, modulations={"fl2va": Made(engine.denoisers["fl2va"].modulation, schedules)})


class Bench:
    """Networks are built when a part first needs them, and let go when the next kind is needed."""

    def __init__(self, out: Path, *, tiny: bool) -> None:
        self.out, self.tiny = out / "speed", tiny
        self.device = torch.device("cpu" if tiny else "cuda:0")
        self.dtype = torch.float32 if tiny else torch.bfloat16
        self.text_tokens, self.rounds = (5, 1) if tiny else (300, 2)
        self._held: dict[str, Any] = {}
        self._folder = out

    @cached_property
    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        if not self.tiny:
            return RELEASED
        return demo_sizes.networks(build_tokenizer().get_vocab(with_added_tokens=True))

    def target(self, seconds: float, edge: int = 768) -> dict[str, Any]:
        return (
            {"short_edge": edge, "duration_seconds": seconds}
            if not self.tiny
            else {"short_edge": 64, "duration_seconds": 4}
        )

    def network(self, name: str) -> Any:
        if name not in self._held:
            self.forget()
            self._held[name] = synthetic_component(
                name, device=self.device, dtype=self.dtype, config=self.configs[name]
            )
        return self._held[name]

    def peer(self, name: str) -> Any:
        """diffusers on our tensors, built once; None where it is not installed."""
        if importlib.util.find_spec("diffusers") is None:
            return None
        network, key = self.network(name), f"peer of {name}"
        if key not in self._held:
            spec = importlib.util.spec_from_file_location("peer", Path(__file__).with_name("diffusers_peer.py"))
            assert spec and spec.loader
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self._held[key] = getattr(module, name)(network)
        held = self._held[key]
        return lambda _: held

    def forget(self) -> None:
        """Device memory of the last kind of networks."""
        self._held.clear()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def keep(self, report: Report) -> None:
        print("\n" + report.markdown(), flush=True)
        report.write(self.out)

    def step5(self) -> None:
        self._step(TIERS, 5, self.rounds, warm_up=True)

    def step15(self) -> None:
        """One run each: an evaluation of the peer takes 39 s; kernels compile at a small canvas."""
        tiers, denoiser = ("lossless", "fast"), self.network("transformer")
        inputs = transformer_step.request_inputs(denoiser, self.target(5, 256), self.text_tokens)
        for call in transformer_step.tier_calls(denoiser, inputs, tiers).values():
            call()
        self._step(tiers, 15, 1, warm_up=False)

    def _step(self, tiers: Sequence[str], seconds: float, rounds: int, *, warm_up: bool) -> None:
        self.keep(
            transformer_step.bench_step(
                self.network("transformer"),
                tiers,
                target=self.target(seconds),
                text_tokens=self.text_tokens,
                rounds=rounds,
                peer=self.peer("transformer"),
                ceiling_seconds=0.01 if self.tiny else 2.0,
                warm_up=warm_up,
            )
        )

    def adapters(self) -> None:
        denoiser, target = self.network("transformer"), self.target(5)
        self.keep(
            adapters.bench_adapters(
                denoiser, ("lossless", "fast"), target=target, text_tokens=self.text_tokens, rounds=self.rounds
            )
        )

    def block_error(self) -> None:
        denoiser, target = self.network("transformer"), self.target(5)
        self.keep(transformer_step.bench_block_error(denoiser, TIERS, target=target, text_tokens=self.text_tokens))

    def tiles8(self) -> None:
        """The 8-bit attention with other tiles than its own, at the rows of 5 s."""
        from h3serve.models.kernels import attention_float8 as kernel

        rows, heads = (300, 2) if self.tiny else (38_010, 56)
        q, k, v = torch.randn(rows, 3, heads, 128, device=self.device).to(self.dtype).unbind(1)
        own = kernel._QUERIES, kernel._KEYS, kernel._WARPS, kernel._STAGES
        report = Report(f"Attention on 8 bits, {rows} rows, by tile", machine(self.device))
        for tile in (own, (64, 128, 4, 2), (128, 128, 8, 3), (128, 128, 8, 2), (64, 64, 4, 4), (128, 64, 4, 3)):
            kernel._QUERIES, kernel._KEYS, kernel._WARPS, kernel._STAGES = tile
            seconds = sustained(lambda: kernel.attention8(q, k, v), seconds=1.0, device=self.device)
            names = "{} queries, {} keys, {} warps, {} stages".format(*tile)
            report.figures.append(Figure(names, seconds, flops=4.0 * rows * rows * heads * 128))
        kernel._QUERIES, kernel._KEYS, kernel._WARPS, kernel._STAGES = own
        self.keep(report)

    def small_error(self) -> None:
        denoiser, target, peer = self.network("transformer"), self.target(5, 256), self.peer("transformer")
        tokens = self.text_tokens
        self.keep(transformer_step.bench_step_error(denoiser, TIERS, target=target, text_tokens=tokens, peer=peer))

    def growth(self) -> None:
        points = [(64, 4), (128, 4)] if self.tiny else [(512, 4), (512, 8), (768, 4), (768, 6), (768, 8)]
        denoiser, tokens = self.network("transformer"), self.text_tokens
        self.keep(growth_command.bench_growth(denoiser, "lossless", points=points, text_tokens=tokens, rounds=1))

    def decode(self) -> None:
        network, target = self.network("video_vae"), self.target(5)
        self.keep(video_vae.bench_decode(network, target=target, rounds=self.rounds))
        self.keep(video_vae.decode_errors(network, size=(64, 64) if self.tiny else (256, 448)))

    def decode_tiles(self) -> None:
        """The decoder's gated product with other tiles, and a decode with the quickest of them."""
        from h3serve.models.kernels import gated_gemm
        from h3serve.models.kernels.gated_gemm import TRANSFORMER_TILE, Tile
        from h3serve.models.video_vae import decoder_ops_triton

        vae, target = self.network("video_vae"), self.target(5)
        layer = vae.decoder.transformer_blocks[0].ff.w1
        x = torch.randn(28, 1797, layer.in_features, device=self.device).to(layer.weight.dtype)
        report = Report("Gated product of the video decoder", machine(self.device))
        own, flops = gated_gemm.DECODER_TILE, 2.0 * x[..., 0].numel() * layer.weight.numel()
        took: dict[Tile, float] = {}
        for tile in (own, TRANSFORMER_TILE, Tile(128, 192, pingpong=True), Tile(192, 128, pingpong=True)):
            gated_gemm.DECODER_TILE = tile
            try:
                took[tile] = sustained(
                    lambda: gated_gemm.gated_linear_batched(x, layer), seconds=0.8, device=self.device
                )
            except Exception:  # a tile that the package does not take
                traceback.print_exc()
                continue
            report.figures.append(Figure("{}x{}, pingpong {}, swizzle {}".format(*tile), took[tile], flops=flops))
        plain = sustained(lambda: decoder_ops_triton.gated_linear(x, layer), seconds=0.8, device=self.device)
        report.figures.append(Figure("cuBLAS, then SwiGLU", plain, flops=flops))
        gated_gemm.DECODER_TILE = min(took, key=lambda tile: took[tile])
        self.keep(report)
        latents = torch.randn(1, 24, *video_vae.latent_size(video_vae.clip_plan(target)), device=self.device)
        calls = {"lossless": video_vae.decode_call(vae, "lossless", latents)}
        timing = alternate(calls, rounds=3, device=self.device)["lossless"]
        report.figures.append(
            Figure(
                "decode of 5 s with the quickest tile",
                timing.median,
                peak_bytes=timing.peak_bytes,
                spread=timing.spread,
            )
        )
        gated_gemm.DECODER_TILE = own
        self.keep(report)

    def peak_fp8(self) -> None:
        """Memory of a request with 8-bit layers: one evaluation needs as much as fifty."""
        self.forget()
        engine = synthetic_engine(self.device, quality="fast", dtype=self.dtype, configs=self.configs)
        engine = without_projections(engine, 1)
        request = {"task": "t2va", "prompt": PROMPT, "target": self.target(5), "num_inference_steps": 1}
        stats = Generator(engine).generate(request).stats
        report = Report("Memory of a request, 5 s, 8-bit layers", {**machine(self.device), "peaks": "with the weights"})
        for name, seconds in stats["seconds"].items():
            report.figures.append(Figure(name, seconds, peak_bytes=stats["peak_bytes"].get(name)))
        report.figures.append(Figure("device peak", peak_bytes=max(stats["peak_bytes"].values(), default=None)))
        self.keep(report)

    def encode(self) -> None:
        network, target = self.network("video_vae"), self.target(5)
        self.keep(video_vae.bench_encode(network, target=target, rounds=1))
        self.keep(video_vae.encode_errors(network, size=(64, 64) if self.tiny else (256, 448)))

    def text(self) -> None:
        lengths = (5, 9) if self.tiny else (300, 2000)
        self.keep(text_encoder.bench_text(self.network("text_encoder"), lengths=lengths, rounds=self.rounds))

    def request_fp8(self) -> None:
        self._request("fast", 4)

    def request4(self) -> None:
        """What does not depend on the number of evaluations."""
        self._request("lossless", 2 if self.tiny else 4)

    def request50(self) -> None:
        self._request("lossless", 2 if self.tiny else 50)

    def _request(self, quality: Any, evaluations: int) -> None:
        self.forget()
        engine = synthetic_engine(self.device, quality=quality, dtype=self.dtype, configs=self.configs)
        engine = without_projections(engine, evaluations)
        output = self._folder / f"{quality}.mp4"
        self.keep(
            whole_request.bench_request(
                engine, target=self.target(5), evaluations=evaluations, prompt=PROMPT, output=output
            )
        )
        output.unlink()


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, in this order")
    parser.add_argument("--limit", type=float, default=3600.0)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if unknown := set(args.only.split(",")) - set(PARTS):
        parser.error(f"no such parts: {', '.join(unknown)}")
    args.out.mkdir(parents=True, exist_ok=True)
    began, bench = time.perf_counter(), Bench(args.out, tiny=args.tiny)
    for name in args.only.split(","):
        spent = time.perf_counter() - began
        if spent + PARTS[name] > args.limit:
            print(f"[{spent:6.1f}] {name} left out: {PARTS[name]:.0f} s are not left", flush=True)
            continue
        part: Callable[[], None] = getattr(bench, name)
        try:
            part()
        except Exception:  # a figure less is better than none
            traceback.print_exc()
            print(f"{name} FAILED", flush=True)
        print(
            f"[{time.perf_counter() - began:6.1f}] {name} took {time.perf_counter() - began - spent:.1f} s", flush=True
        )


if __name__ == "__main__":
    main()
