"""The plot of measured steps."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.speed.plot import _apart, _ticks, draw, read_series
from h3serve.cli.main import run

SVG = "{http://www.w3.org/2000/svg}"


def report(**seconds: float) -> dict[str, Any]:
    return {"facts": {}, "figures": [{"name": name, "seconds": value} for name, value in seconds.items()]}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    growth = {"facts": {}, "figures": [{"name": f"{n} rows", "seconds": s} for n, s in ((15_000, 1.2), (38_010, 5.3))]}
    file = tmp_path / "r.json"
    steps = {
        "Step, 38010 rows": report(peer=6.5, lossless=5.2, fast=4.0),
        "Step, 73686 rows": report(peer=19.4, lossless=15.7),
    }
    file.write_text(json.dumps({**steps, "Growth, lossless": growth, "Error of one block, 38010 rows": report(peer=1)}))
    return file


def test_series_come_from_steps_and_from_growth(results: Path) -> None:
    peer, lossless, fast = read_series(results, {"peer": "another", "lossless": "lossless", "fast": "fast", "no": "no"})
    assert (peer.name, peer.points) == ("another", ((38_010, 6.5), (73_686, 19.4)))
    assert lossless.points == ((15_000, 1.2), (38_010, 5.2), (73_686, 15.7))  # a step counts more than growth
    assert fast.points == ((38_010, 4.0),)


def test_the_picture_shows_every_point(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.svg"
    assert run(["bench", "plot", str(results), "--out", str(out), "--series", "peer=A & B,lossless,fast"]) == 0
    picture = ElementTree.fromstring(out.read_text())
    assert len(picture.findall(f"{SVG}circle")) == 2 + 3 + 1
    assert len(picture.findall(f"{SVG}polyline")) == 2  # one point makes no curve
    texts = [element.text for element in picture.findall(f"{SVG}text")]
    assert "A & B 19.4 s" in texts and "lossless 15.7 s" in texts and "fast 4.0 s" in texts
    heights = [float(circle.attrib["cy"]) for circle in picture.findall(f"{SVG}circle")]
    assert heights[1] < heights[4] < heights[0] < heights[5] < heights[2]  # the slower, the higher


def test_curves_go_through_points_that_lie_on_them(results: Path) -> None:
    series = read_series(results, {"peer": "peer"})
    path = re.search(r'polyline points="([^"]+)"', draw(series, "t"))
    assert path
    first = path.group(1).split()[0]
    circles = re.findall(r'circle cx="([\d.]+)" cy="([\d.]+)"', draw(series, "t"))
    assert first == ",".join(circles[0])


def test_labels_keep_apart_and_ticks_are_round() -> None:
    assert _apart([50.0, 48.0, 100.0]) == [64.0, 48.0, 100.0]
    assert _ticks(20.2) == [0, 5, 10, 15, 20] and _ticks(76_000) == [0, 20_000, 40_000, 60_000]


@pytest.mark.parametrize(("text", "series"), [("{}", "peer"), ("no json", "peer"), (None, "peer")])
def test_results_that_hold_nothing(text: str | None, series: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "r.json"
    if text is not None:
        file.write_text(text)
    assert run(["bench", "plot", str(file), "--out", str(tmp_path / "p.svg"), "--series", series]) == 2
    assert "results" in capsys.readouterr().err and not (tmp_path / "p.svg").exists()
