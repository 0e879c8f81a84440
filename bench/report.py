"""Measured figures as a table for people (Markdown) and for programs (JSON)."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Figure:
    """One measured call. What does not apply is None."""

    name: str
    seconds: float | None = None
    flops: float | None = None
    floor_seconds: float | None = None  # of the same run
    peer_seconds: float | None = None  # of the same run
    error: float | None = None  # distance from a float32 run over that run's norm
    peak_bytes: int | None = None  # beside the weights
    spread: float | None = None  # slowest over quickest run, minus 1

    def cells(self) -> list[str]:
        """The columns of `HEADER`."""

        def over_seconds(value: float | None) -> float | None:
            return value / self.seconds if value and self.seconds else None

        return [
            self.name,
            _cell(self.seconds and 1e3 * self.seconds, ".2f"),
            _cell(over_seconds(self.flops and self.flops / 1e12), ".0f"),
            _cell(over_seconds(self.floor_seconds), ".1%"),
            _cell(over_seconds(self.peer_seconds), ".3f", "x"),
            _cell(self.error, ".2e"),
            _cell(self.peak_bytes and self.peak_bytes / 2**30, ".1f"),
            _cell(self.spread, ".1%"),
        ]


HEADER = ("figure", "ms", "TFLOP/s", "of the floor", "against peer", "error", "peak GiB", "spread")


@dataclass
class Report:
    """Figures of one run, with what they were measured on."""

    title: str
    facts: dict[str, Any] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)

    def markdown(self) -> str:
        """A heading, the facts, the table."""
        rows = [HEADER, ["---"] * len(HEADER), *(figure.cells() for figure in self.figures)]
        table = ["| " + " | ".join(row) + " |" for row in rows]
        facts = [f"- {name}: {value}" for name, value in self.facts.items()]
        return "\n".join([f"## {self.title}", "", *facts, "", *table, ""])

    def write(self, path: Path) -> None:
        """PATH.md and PATH.json; other reports in them stay, one of the same title is replaced."""
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_suffix(".json")
        held = json.loads(file.read_text()) if file.is_file() else {}
        held[self.title] = {"facts": self.facts, "figures": [asdict(f) for f in self.figures]}
        file.write_text(json.dumps(held, indent=1) + "\n")
        reports = [Report(t, r["facts"], [Figure(**f) for f in r["figures"]]) for t, r in held.items()]
        path.with_suffix(".md").write_text("\n".join(report.markdown() for report in reports))


def machine(device: torch.device) -> dict[str, str]:
    """What has to be known to compare figures."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU"
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    return {"device": name, "versions": f"{versions}, Python {platform.python_version()}"}


def _cell(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"
