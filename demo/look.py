"""Kept clips of an evaluation on one page, to look at: frames, waveform, spectrogram, prompt, notes, what is wrong.

python -m demo.look out/demo-evaluation/demo-20/t2va --out sheet.png [--count 20] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from demo.sheet import sheet


def read_clip(file: Path) -> tuple[Any, Any, str]:
    """Video, audio and text of one kept clip."""
    kept, facts = np.load(file), json.loads(file.with_suffix(".json").read_text())
    wrong = [name for name, value in facts.items() if value == 0.0 and name != "seconds"]
    notes = "; ".join(facts["heard"]) or "nothing"
    text = f"{file.stem}: {facts['prompt']}\nheard: {notes}\nwrong: {', '.join(wrong) or 'nothing'}"
    return kept["video"], kept["audio"].astype(np.float32), text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="rows of a run")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the choice among them")
    arguments = parser.parse_args()
    files = sorted(file for folder in arguments.folders for file in folder.glob("*.npz"))
    chosen = sorted(Random(arguments.seed).sample(files, min(arguments.count, len(files))))
    clips = [read_clip(file) for file in chosen]
    sheet(clips, arguments.out)
    print("\n\n".join(text for _, _, text in clips))


if __name__ == "__main__":
    main()
