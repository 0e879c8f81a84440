"""One generation at the released sizes with random weights: seconds per stage and memory peaks.

    python bench/full_size.py OUT.md [--seconds 4] [--evaluations 8] [--device cuda]

Every component has its real dimensions; values are random, so the picture is noise. Writes Markdown and the MP4.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

import torch

from h3serve.core.geometry import RELEASED_SIZES
from h3serve.models.tiers import use_tier
from h3serve.models.video_vae import to_compute_dtype
from h3serve.pipeline.engine import Engine
from h3serve.pipeline.generator import Generator
from h3serve.weights.demo_tokenizer import build_tokenizer
from h3serve.weights.synthetic import synthetic_component

PROMPT = "A red fox trots through a snowy forest while the wind rises and snow crunches underfoot. " * 6


def build_engine(device: torch.device, quality: str) -> tuple[Engine, dict[str, float]]:
    """All components at full size, with the seconds that each took to draw."""
    seconds = {}
    parts = {}
    for name in ("transformer", "text_encoder", "video_vae", "audio_vae"):
        began = time.perf_counter()
        dtype = torch.float32 if "vae" in name else torch.bfloat16
        parts[name] = synthetic_component(name, device=device, dtype=dtype)
        torch.cuda.synchronize()
        seconds[name] = time.perf_counter() - began
    use_tier(parts["transformer"].transformer, quality, device)
    engine = Engine(
        tokenizer=build_tokenizer(),
        text_encoder=parts["text_encoder"],
        video_vae=to_compute_dtype(parts["video_vae"], torch.float16),
        audio_vae=parts["audio_vae"],
        denoisers={"fl2va": parts["transformer"]},
        sigma_shifts={"fl2va": (12.0, 3.0)},
        device=device,
        quality=quality,
        rules=RELEASED_SIZES,
    )
    return engine, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--evaluations", type=int, default=8)
    parser.add_argument("--quality", default="lossless")
    args = parser.parse_args()
    device = torch.device("cuda")
    engine, built = build_engine(device, args.quality)
    resident = torch.cuda.memory_allocated() / 2**30
    request = {
        "task": "t2va",
        "prompt": PROMPT,
        "target": {"short_edge": 768, "aspect_ratio": "16:9", "duration_seconds": args.seconds},
        "num_inference_steps": args.evaluations,
    }
    generator = Generator(engine)
    lines = []
    for run in ("first", "second"):
        began = time.perf_counter()
        result = generator.generate(request, output=args.out.with_suffix(".mp4"))
        wall = time.perf_counter() - began
        stats = result.stats
        lines += [
            f"\n## {run} run: {wall:.2f} s to the finished MP4, {stats['text_tokens']} text tokens\n",
            "| stage | seconds | peak GiB |",
            "|---|---|---|",
        ]
        lines += [
            f"| {n} | {s:.3f} | {stats['peak_bytes'].get(n, 0) / 2**30:.1f} |" for n, s in stats["seconds"].items()
        ]
        lines.append(f"\nOne evaluation: {stats['seconds']['denoise'] / args.evaluations:.3f} s.")
        print("\n".join(lines[-9:]), flush=True)
    plan = result.plan
    size = f"{plan.canvas[0]}x{plan.canvas[1]}, {plan.frames} frames, {args.evaluations} evaluations"
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    drawn = ", ".join(f"{n} {s:.1f} s" for n, s in built.items())
    head = [
        f"# Full size, random weights: T2VA {size}",
        f"\n{torch.cuda.get_device_name()}, {versions}, Python {platform.python_version()}, tier {args.quality}.",
        f"\nEverything resident: {resident:.1f} GiB of weights, drawn on the device in {drawn}.",
    ]
    args.out.write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
