"""One generation at the released sizes with random weights: seconds per stage and memory peaks.

    python bench/full_size.py OUT.md [--seconds 4] [--evaluations 8] [--quality lossless]

Every component has its real dimensions; values are random, so the picture is noise. Writes Markdown and an MP4.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

import torch

from bench.synthetic_engine import synthetic_engine
from h3serve.pipeline.generator import Generator

PROMPT = "A red fox trots through a snowy forest while the wind rises and snow crunches underfoot. " * 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--evaluations", type=int, default=8)
    parser.add_argument("--quality", default="lossless")
    args = parser.parse_args()
    began = time.perf_counter()
    generator = Generator(synthetic_engine(torch.device("cuda"), quality=args.quality))
    torch.cuda.synchronize()
    built, resident = time.perf_counter() - began, torch.cuda.memory_allocated() / 2**30
    request = {
        "task": "t2va",
        "prompt": PROMPT,
        "target": {"short_edge": 768, "aspect_ratio": "16:9", "duration_seconds": args.seconds},
        "num_inference_steps": args.evaluations,
    }
    lines = [
        f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"cuDNN {torch.backends.cudnn.version()}, Python {platform.python_version()}, tier {args.quality}.",
        f"\nEverything resident: {resident:.1f} GiB of weights, drawn on the device in {built:.1f} s.",
    ]
    for run in ("first", "second"):
        began = time.perf_counter()
        result = generator.generate(request, output=args.out.with_suffix(".mp4"))
        wall = time.perf_counter() - began
        stats = result.stats
        lines.append(f"\n## {run} run: {wall:.2f} s to the finished MP4, {stats['text_tokens']} text tokens\n")
        lines += ["| stage | seconds | peak GiB |", "|---|---|---|"]
        for name, seconds in stats["seconds"].items():
            lines.append(f"| {name} | {seconds:.3f} | {stats['peak_bytes'].get(name, 0) / 2**30:.1f} |")
        lines.append(f"\nOne evaluation: {stats['seconds']['denoise'] / args.evaluations:.3f} s.")
        print("\n".join(lines[-11:]), flush=True)
    plan = result.plan
    size = f"{plan.canvas[0]}x{plan.canvas[1]}, {plan.frames} frames, {args.evaluations} evaluations"
    args.out.write_text("\n".join([f"# Full size, random weights: T2VA {size}", *lines]) + "\n")


if __name__ == "__main__":
    main()
