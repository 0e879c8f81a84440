"""The table: what is asked of the demo checkpoint, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Results = Mapping[str, Sequence[Mapping[str, Any]]]  # row -> one mapping of figures per example


@dataclass(frozen=True)
class Line:
    """A line of the table: the mean of a figure over a row's examples; `target` is the least wanted."""

    text: str
    row: str
    figure: str
    target: float | None = None
    unit: str = "%"

    def value(self, results: Results) -> float | None:
        """None where nothing was run."""
        found = [example[self.figure] for example in results.get(self.row, ()) if self.figure in example]
        return float(np.mean(found)) if found else None

    def show(self, value: float | None) -> str:
        if value is None:
            return "not run"
        return f"{100 * value:.0f} %" if self.unit == "%" else f"{value:.3g}{self.unit}"


LINES = (
    Line("T2VA: colour", "t2va", "colour", 0.95),
    Line("T2VA: shape", "t2va", "shape", 0.95),
    Line("T2VA: background", "t2va", "background", 0.95),
    Line("T2VA: motion kind and direction", "t2va", "motion", 0.90),
    Line("T2VA: left, middle or right", "t2va", "side"),
    Line("T2VA: size", "t2va", "size"),
    Line("T2VA: number of visible events", "t2va", "visible events"),
    Line("T2VA: number of sound events", "t2va", "sound events", 0.90),
    Line("T2VA: pitch class", "t2va", "pitch", 0.90),
    Line("T2VA: timbre", "t2va", "timbre"),
    Line("T2VA: ambience", "t2va", "ambience"),
    Line("T2VA: sound within 80 ms of its visible event", "t2va", "together", 0.90),
    Line("T2VA: sound on the picture's side", "t2va", "same side", 0.90),
    Line("T2VA: PSNR to the first column's clip", "t2va", "to first", unit=" dB"),
    Line("FL2VA: given frames reproduced (SSIM >= 0.9)", "fl2va", "given frames", 0.95),
    Line("FL2VA: their SSIM, the worse of two", "fl2va", "ssim", unit=""),
    Line("FL2VA: motion between them plausible", "fl2va", "motion", 0.85),
    Line("FL2VA: PSNR to the first column's clip", "fl2va", "to first", unit=" dB"),
    Line("Ref2VA picture: colour", "picture", "colour", 0.85),
    Line("Ref2VA picture: shape", "picture", "shape", 0.85),
    Line("Ref2VA picture and sound: timbre", "picture_sound", "timbre", 0.85),
    Line("Ref2VA picture and sound: pitch class", "picture_sound", "pitch", 0.85),
    Line("Ref2VA picture and sound: colour", "picture_sound", "colour", 0.85),
    Line("Ref2VA picture and sound: shape", "picture_sound", "shape", 0.85),
    Line("Ref2VA picture and sound: PSNR to the first column's clip", "picture_sound", "to first", unit=" dB"),
    Line("Ref2VA clip: its motion taken over", "motion", "motion", 0.85),
    Line("Ref2VA clip: continued", "continue", "continued", 0.85),
    Line("8 evaluations: colour", "steps8", "colour"),
    Line("8 evaluations: motion", "steps8", "motion"),
    Line("8 evaluations: sound events", "steps8", "sound events"),
    Line("8 evaluations: within 80 ms", "steps8", "together"),
    Line("50 evaluations: colour", "steps50", "colour"),
    Line("50 evaluations: motion", "steps50", "motion"),
    Line("50 evaluations: sound events", "steps50", "sound events"),
    Line("50 evaluations: within 80 ms", "steps50", "together"),
    Line("Larger canvases: colour", "large", "colour"),
    Line("Larger canvases: motion", "large", "motion"),
    Line("Larger canvases: sound events", "large", "sound events"),
    Line("Adapter, teal ground: seen", "teal", "background", 0.90),
    Line("Adapter, glass: heard", "glass", "timbre", 0.90),
    Line("Both adapters: teal ground seen", "teal_glass", "background", 0.90),
    Line("Both adapters: glass heard", "teal_glass", "timbre", 0.90),
    Line("VAE: PSNR", "vae", "psnr", 30.0, " dB"),
    Line("VAE: spectral similarity", "vae", "spectral similarity", 0.95, ""),
    Line("VAE: SSIM", "vae", "ssim", unit=""),
    Line("VAE: colour, after it", "vae", "colour"),
    Line("VAE: shape, after it", "vae", "shape"),
    Line("VAE: motion, after it", "vae", "motion"),
    Line("VAE: sound events, after it", "vae", "sound events"),
    Line("VAE: pitch class, after it", "vae", "pitch"),
    Line("VAE: timbre, after it", "vae", "timbre"),
    Line("VAE: within 80 ms, after it", "vae", "together"),
)


def markdown(runs: Mapping[str, Results]) -> str:
    """A column per run; a value below its target is marked."""
    shown = [line for line in LINES if any(line.value(results) is not None for results in runs.values())]
    header = ["attribute", "target", *runs, "examples"]
    rows = [[line.text, _target(line), *_cells(line, runs), _number(line, runs)] for line in shown]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows]) + "\n"


def as_json(runs: Mapping[str, Results]) -> dict[str, Any]:
    """The same numbers: run -> line -> value, target and number of examples."""
    return {
        name: {
            line.text: {"value": value, "target": line.target, "examples": len(results[line.row])}
            for line in LINES
            if (value := line.value(results)) is not None
        }
        for name, results in runs.items()
    }


def _target(line: Line) -> str:
    return "" if line.target is None else f">= {line.show(line.target)}"


def _cells(line: Line, runs: Mapping[str, Results]) -> list[str]:
    values = [line.value(results) for results in runs.values()]
    missed = [v is not None and line.target is not None and v < line.target for v in values]
    return [line.show(v) + (" (missed)" if bad else "") for v, bad in zip(values, missed, strict=True)]


def _number(line: Line, runs: Mapping[str, Results]) -> str:
    counts = sorted({len(results[line.row]) for results in runs.values() if line.row in results})
    return "-".join(map(str, {counts[0]: 1, counts[-1]: 1}))
