"""Seconds of an evaluation against its rows, as an SVG, from the JSON that benchmarks write."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from h3serve.core.errors import RequestError
from h3serve.core.estimate_seconds import Point, fit

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 34, 52  # margins; labels of the lines are on the right
COLOURS = ("#6b7280", "#b45309", "#1d4ed8", "#0f766e", "#7c3aed", "#be123c")
CURVE_STEPS = 60


@dataclass(frozen=True)
class Series:
    """Measured points of one implementation, by rows."""

    name: str
    points: tuple[Point, ...]


def read_series(file: Path, names: Mapping[str, str]) -> list[Series]:
    """The series of `names` (name in the results to name in the plot), as far as they were measured.

    RequestError if the file holds none of them. Steps come from `bench step` (the last of two at one length), and
    from `bench growth` where no step of that length was measured.
    """
    try:
        results = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise RequestError("results", str(file), f"a JSON file of measurements ({error})") from None
    found: dict[str, dict[int, float]] = {name: {} for name in names}
    for title, report in results.items():
        kind, _, rest = title.partition(", ")
        for figure in report["figures"] if kind in ("Growth", "Step") else ():
            name, text = (rest, figure["name"]) if kind == "Growth" else (figure["name"], rest)
            if name in found and figure["seconds"]:
                rows, points = int(text.split()[0]), found[name]
                points[rows] = points.get(rows, figure["seconds"]) if kind == "Growth" else figure["seconds"]
    series = [Series(names[name], tuple(sorted(points.items()))) for name, points in found.items() if points]
    if not series:
        raise RequestError("results", str(file), f"measurements of {', '.join(names)}")
    return series


def draw(series: Sequence[Series], title: str) -> str:
    """An SVG: points as measured, and through each series of several lengths the cost formula's curve."""
    axes = Axes.around([point for one in series for point in one.points])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}</text>',
        *axes.grid(),
    ]
    ends = _apart([axes.at(*one.points[-1])[1] for one in series])
    for number, (one, end) in enumerate(zip(series, ends, strict=True)):
        parts += _line(one, axes, COLOURS[number % len(COLOURS)], end)
    return "\n".join([*parts, "</svg>", ""])


@dataclass(frozen=True)
class Axes:
    """From rows and seconds to pixels; both begin at zero."""

    rows: float
    seconds: float

    @staticmethod
    def around(points: Sequence[Point]) -> Axes:
        """With room for all points."""
        return Axes(1.04 * max(rows for rows, _ in points), 1.04 * max(seconds for _, seconds in points))

    def at(self, rows: float, seconds: float) -> tuple[float, float]:
        """x, y."""
        x = LEFT + (WIDTH - LEFT - RIGHT) * rows / self.rows
        return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * seconds / self.seconds

    def grid(self) -> list[str]:
        """Lines and numbers at round values, and what the axes are."""
        parts = []
        for value in _ticks(self.seconds):
            (left, y), (right, _) = self.at(0, value), self.at(self.rows, value)
            parts.append(f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>')
            parts.append(f'<text x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        for value in _ticks(self.rows):
            x, y = self.at(value, 0)
            parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x:.1f}" y2="{y + 5:.1f}" stroke="#374151"/>')
            parts.append(f'<text x="{x:.1f}" y="{y + 20:.1f}" text-anchor="middle">{value / 1000:g}</text>')
        (left, bottom), (right, _) = self.at(0, 0), self.at(self.rows, 0)
        parts.append(f'<line x1="{left}" y1="{bottom}" x2="{right:.1f}" y2="{bottom}" stroke="#374151"/>')
        middle = (left + right) / 2
        parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - 12}" text-anchor="middle">thousand rows</text>')
        parts.append(f'<text x="14" y="{TOP - 2}" font-size="12">s</text>')
        return parts


def _line(series: Series, axes: Axes, colour: str, label_y: float) -> list[str]:
    parts, (last, seconds) = [], series.points[-1]
    if len(series.points) > 1:
        curve, first = fit(series.points), series.points[0][0]
        at = [first + (last - first) * i / CURVE_STEPS for i in range(CURVE_STEPS + 1)]
        path = " ".join("{:.1f},{:.1f}".format(*axes.at(rows, curve.seconds(rows))) for rows in at)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    for point in series.points:
        x, y = axes.at(*point)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
    x, _ = axes.at(last, seconds)
    label = f"{escape(series.name)} {seconds:.1f} s"
    parts.append(f'<text x="{x + 9:.1f}" y="{label_y + 4:.1f}" fill="{colour}">{label}</text>')
    return parts


def _apart(heights: Sequence[float], least: float = 16.0) -> list[float]:
    """The same heights, pushed down where two labels would lie on each other."""
    placed: dict[int, float] = {}
    below = -math.inf
    for index in sorted(range(len(heights)), key=lambda i: heights[i]):
        placed[index] = below = max(heights[index], below + least)
    return [placed[index] for index in range(len(heights))]


def _ticks(largest: float) -> list[float]:
    """Round values from 0 on, some five of them."""
    step = 10 ** math.floor(math.log10(largest / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if largest / (step * factor) <= 6)
    return [step * i for i in range(int(largest / step) + 1)]


def parse_names(text: str) -> dict[str, str]:
    """`NAME` or `NAME=LABEL`, separated by commas."""
    pairs: list[Any] = [part.partition("=") for part in text.split(",")]
    return {name: label or name for name, _, label in pairs}
