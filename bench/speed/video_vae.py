"""The video VAE, both directions: seconds, memory, and distance from float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from bench.report import Figure, Report, machine
from bench.speed.timing import Call, alternate
from h3serve.core.limits import Quality
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.models.quality import use_vae_quality
from h3serve.models.video_vae.video_vae import VideoVAE, to_compute_dtype, to_uint8
from h3serve.runtime.offload.copy_to_host import to_host

DECODE_TIERS = ("exact", "lossless-plain", "lossless")  # plain: without optional packages
# A peer's VAE: takes ours, whose weights it shares, and gives calls by direction: latents or pixels in.
PeerVAE = Callable[[VideoVAE], Mapping[str, Callable[[torch.Tensor], torch.Tensor]]]


def bench_decode(vae: VideoVAE, *, target: Mapping[str, Any], rounds: int, peer: PeerVAE | None = None) -> Report:
    """Latents to uint8 frames in host memory."""
    device = vae.quant_conv.weight.device
    plan = clip_plan(target)
    latents = torch.randn(1, vae.config.latent_channels, *latent_size(plan), device=device)
    calls: dict[str, Call] = {}
    for tier in DECODE_TIERS:
        calls[tier] = decode_call(vae, tier, latents)
    if peer is not None:
        theirs = peer(vae)["decode"]
        calls["peer"] = lambda: theirs(latents)
    return _report(f"Video VAE decode, {plan.frames} frames", calls, vae, rounds=rounds, device=device)


def bench_encode(vae: VideoVAE, *, target: Mapping[str, Any], rounds: int, peer: PeerVAE | None = None) -> Report:
    """Pixels on the device to moments."""
    device = vae.quant_conv.weight.device
    plan = clip_plan(target)
    width, height = plan.canvas
    pixels = torch.randn(1, 3, plan.frames, height, width, device=device)
    calls: dict[str, Call] = {"lossless": lambda: encode(vae, "lossless", pixels)}
    if peer is not None:
        theirs = peer(vae)["encode"]
        calls["peer"] = lambda: theirs(pixels)
    return _report(f"Video VAE encode, {plan.frames} frames", calls, vae, rounds=rounds, device=device)


def decode_call(vae: VideoVAE, tier: str, latents: torch.Tensor) -> Call:
    """Decodes as a request does: bytes of one window are copied out while the next one is computed."""

    def run() -> int:
        _use(vae, tier, latents.device)
        return sum(len(frames) for (frames,) in to_host((to_uint8(part),) for part in vae.decode(latents)))

    return run


def _use(vae: VideoVAE, name: str, device: torch.device) -> None:
    tier, _, plain = name.partition("-")
    use_vae_quality(vae, cast(Quality, tier), device, extras=not plain)


def encode(vae: VideoVAE, tier: Any, pixels: torch.Tensor) -> torch.Tensor:
    """The mean of the posterior."""
    use_vae_quality(vae, tier, pixels.device)
    return vae.encode(pixels).mean


def decode_errors(vae: VideoVAE, *, frames: int = 22, size: tuple[int, int] = (256, 448)) -> Report:
    """Frames of a small clip against float32 weights and arithmetic."""
    device = vae.quant_conv.weight.device
    dtype = vae.post_quant_conv.weight.dtype
    shape = (5 * (frames - 5) // 17 + 2, size[0] // 16, size[1] // 16)
    latents = torch.randn(1, vae.config.latent_channels, *shape, device=device)
    results = {}
    for tier in DECODE_TIERS:
        _use(vae, tier, device)
        results[tier] = vae.decode_all(latents)
    use_vae_quality(vae, "exact", device)
    exact = to_compute_dtype(vae, torch.float32).decode_all(latents)
    to_compute_dtype(vae, dtype)
    return _errors(f"Error of a video VAE decode, {frames} frames of {size[1]}x{size[0]}", results, exact)


def encode_errors(vae: VideoVAE, *, frames: int = 17, size: tuple[int, int] = (256, 448)) -> Report:
    """Means of a small clip against float32 arithmetic; TF32 convolutions, the release's way, beside ours."""
    device = vae.quant_conv.weight.device
    pixels = torch.randn(1, 3, frames, *size, device=device)
    results, cudnn = {"lossless": encode(vae, "lossless", pixels)}, torch.backends.cudnn
    allowed = cudnn.allow_tf32
    for name, cudnn.allow_tf32 in (("TF32 convolutions", True), ("float32", False)):
        results[name] = encode(vae, "exact", pixels)
    cudnn.allow_tf32 = allowed
    exact = results.pop("float32")
    return _errors(f"Error of a video VAE encode, {frames} frames of {size[1]}x{size[0]}", results, exact)


def _errors(title: str, results: Mapping[str, torch.Tensor], exact: torch.Tensor) -> Report:
    report = Report(title, machine(exact.device))
    for name, result in results.items():
        report.figures.append(Figure(name, error=float((result - exact).norm() / exact.norm())))
    return report


def clip_plan(target: Mapping[str, Any]) -> Plan:
    """Sizes of text to video with this target."""
    request = parse_request({"task": "t2va", "prompt": "measured", "target": dict(target)})
    return Plan.resolve(request, prompt_tokens=1)


def latent_size(plan: Plan) -> tuple[int, int, int]:
    """(T, h, w) of the target's latents."""
    return plan.target.latent_frames, *plan.target.latent_size


def _report(title: str, calls: Mapping[str, Call], vae: VideoVAE, *, rounds: int, device: torch.device) -> Report:
    timings = alternate(calls, rounds=rounds, device=device)
    weights = sum(p.nbytes for p in vae.parameters())
    facts = {
        **machine(device),
        "weights GiB": f"{weights / 2**30:.1f}",
        "tiles at once": f"decode {vae.tile_batch}, encode {vae.encode_tile_batch}",
    }
    peer = timings["peer"].median if "peer" in timings else None
    report = Report(title, facts)
    for name, timing in timings.items():
        report.figures.append(
            Figure(name, timing.median, peer_seconds=peer, peak_bytes=timing.peak_bytes, spread=timing.spread)
        )
    return report
