"""What the demo checkpoint gets right, by detectors: no model is asked.

    python -m demo.evaluate [--model demo] [--rows t2va,fl2va,...] [--count 100] [--steps 20] [--out PREFIX]
    python -m demo.evaluate --show demo-20,demo-20-qkv-order --out bench/results/demo_faults

Every example's figures are kept under --cache, so a run goes on where it ended, and several processes
may share it (--shard 0/2 and --shard 1/2). `--model truth` and `--model truth-degraded` judge the ground
truth itself. --show prints runs side by side from what is kept.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from demo.evaluation.against import psnr_to
from demo.evaluation.faults import FAULTS
from demo.evaluation.judge import fidelity, judge
from demo.evaluation.makers import Engine, Maker, Truth, truth
from demo.evaluation.rows import ROWS, Case, cases
from demo.evaluation.table import as_json, markdown
from h3serve import Generator

HEADING = """# What the demo checkpoint gets right

`python -m demo.evaluate`: detectors over held-out prompts. A column is a run: model, evaluations of a clip, and what
else was set (quality, device, planted fault); examples are the first of each row. docs/demo.md says what is right. PSNR
to the first column's clips (at most 20 a row are kept) is 100 dB for the same pixels.

"""
DEFAULT_ROWS = tuple(name for name, row in ROWS.items() if name != "large" and not row.new)


def load_maker(arguments: argparse.Namespace) -> Maker:
    """The engine of the settings, with the fault planted in its weights."""
    if arguments.model.startswith("truth"):
        return Truth(degraded=arguments.model == "truth-degraded")
    settings = {"device": arguments.device, "dtype": arguments.dtype, "quality": arguments.quality}
    partition = "fl2va" if arguments.adapters else "both"  # the demo's adapters are for one transformer
    generator = Generator.from_pretrained(arguments.model, partition=partition, **settings)
    if arguments.fault:
        FAULTS[arguments.fault].weights(generator)
    return Engine(generator, arguments.adapters)


def run_case(maker: Maker, row: str, case: Case, *, steps: int, keep: Path | None) -> dict[str, Any]:
    """Makes and judges one clip; JSON-ready."""
    began = time.monotonic()
    video, audio = maker.reconstruct(case) if row == "vae" else maker.make(case, ROWS[row].steps or steps)
    seconds = time.monotonic() - began
    figures, seen, heard = judge(case, video, audio)
    if row == "vae":
        figures |= fidelity(truth(case), video, audio)
    if keep:
        np.savez_compressed(keep, video=video, audio=audio.astype(np.float16))
    return {
        **figures,
        "seconds": round(seconds, 2),
        "prompt": case.example.prompt,
        "kind": case.example.kind,
        "seen": repr(seen),
        "heard": [f"{n.time_s:.2f} s {n.pitch} {n.material} at {n.x:.2f}" for n in heard.notes],
    }


def run(arguments: argparse.Namespace, folder: Path) -> None:
    """All cases of this shard that are not kept yet, row by row."""
    index, shards = (int(part) for part in arguments.shard.split("/"))
    maker: Maker | None = None
    with FAULTS[arguments.fault].code() if arguments.fault else nullcontext():
        for row in arguments.rows or DEFAULT_ROWS:
            (folder / row).mkdir(parents=True, exist_ok=True)
            for number, case in enumerate(cases(ROWS[row], arguments.count)):
                file = folder / row / f"{number:03d}.json"
                if number % shards != index or file.exists():
                    continue
                maker = maker or load_maker(arguments)
                keep = file.with_suffix(".npz") if number < arguments.keep else None
                result = run_case(maker, row, case, steps=arguments.steps, keep=keep)
                part = file.with_suffix(".part")
                part.write_text(json.dumps(result, indent=1))
                part.rename(file)
                print(row, number, f"{result['seconds']:.1f} s", flush=True)


def read(folder: Path, count: int, rows: Collection[str], first: Path | None = None) -> dict[str, list[dict[str, Any]]]:
    """The kept figures of a run, at most `count` a row; with those of how far its clips are from run `first`'s."""
    found = {row: sorted((folder / row).glob("*.json"))[:count] for row in ROWS if row in rows}
    return {row: [_read_one(file, first) for file in files] for row, files in found.items() if files}


def _read_one(file: Path, first: Path | None) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(file.read_text())
    clip = file.with_suffix(".npz")
    distance = psnr_to(first / clip.parent.name / clip.name, clip) if first else None
    return figures | ({} if distance is None else {"to first": distance})


def label_of(arguments: argparse.Namespace) -> str:
    """Everything that may change a clip."""
    name = Path(arguments.model).name
    adapters = "+".join(Path(adapter).name.replace(".safetensors", "") for adapter in arguments.adapters)
    parts = [
        name,
        str(arguments.steps),
        arguments.quality,
        arguments.dtype,
        arguments.device,
        arguments.fault,
        adapters,
    ]
    return "-".join(p for p in parts if p not in ("", None, "lossless", "auto", "cpu"))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rows", type=lambda text: text.split(","), help=",".join(ROWS))
    parser.add_argument("--count", type=int, default=100, help="examples a row")
    parser.add_argument("--steps", type=int, default=20, help="evaluations a clip")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quality", default="lossless", choices=("exact", "lossless", "fast"))
    parser.add_argument("--fault", choices=tuple(FAULTS))
    parser.add_argument("--adapters", type=lambda text: text.split(","), default=(), help="FILE[=STRENGTH],...")
    parser.add_argument("--shard", default="0/1", help="I/N: this process makes every Nth example")
    parser.add_argument("--cache", type=Path, default=Path("out/demo-evaluation"))
    parser.add_argument("--keep", type=int, default=20, help="clips a row that are kept for demo.look")
    parser.add_argument("--show", type=lambda text: text.split(","), help="runs to print beside one another")
    parser.add_argument("--out", type=Path, help="PREFIX.md and PREFIX.json")
    arguments = parser.parse_args()
    if unknown := set(arguments.rows or ()) - set(ROWS):
        parser.error(f"no rows {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    return arguments


def main() -> None:
    arguments = parse()
    labels = arguments.show or [label_of(arguments)]
    if not arguments.show:
        run(arguments, arguments.cache / labels[0])
    rows, cache = arguments.rows or ROWS, arguments.cache
    first = cache / labels[0] if len(labels) > 1 else None
    runs = {label: read(cache / label, arguments.count, rows, first) for label in labels}
    print(table := markdown(runs))
    if arguments.out:
        arguments.out.with_suffix(".md").write_text(HEADING + table)
        arguments.out.with_suffix(".json").write_text(json.dumps(as_json(runs), indent=1) + "\n")


if __name__ == "__main__":
    main()
