"""The one-file HTML page: everything it shows is inside it, so it can be mailed or kept with a build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from h3serve.core.errors import RequestError
from h3serve.guard import page_images
from h3serve.guard.audio_metrics import spectrogram_db
from h3serve.guard.guard_results import CaseResult, Report
from h3serve.guard.history import Series, series
from h3serve.guard.truth_store import Clip, find, load

TEMPLATE = Path(__file__).with_name("report.html")
FRAMES_SHOWN = 3  # per case: of `all` frames the worst of each figure


@dataclass(frozen=True)
class FrameView:
    """One compared frame as data URIs; what was not kept is None."""

    index: int
    truth: str | None
    made: str | None
    difference: str | None


@dataclass(frozen=True)
class CaseView:
    """What the template shows of a case."""

    result: CaseResult
    frames: list[FrameView] = field(default_factory=list)
    waves: list[tuple[str, Markup, str]] = field(default_factory=list)  # caption, waveform, spectrogram
    trends: dict[str, Markup] = field(default_factory=dict)


def write_page(report: Report, path: Path, *, sources: Sequence[Path], history: Path | None = None) -> None:
    """Writes the page of `report`; clips come from the run folders `sources`, trends from `history`."""
    views = [_view(result, sources, history) for result in report.results]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text())
    path.write_text(template.render(report=report, views=views, gain=page_images.DIFFERENCE_GAIN))


def _view(result: CaseResult, sources: Sequence[Path], history: Path | None) -> CaseView:
    truth, made = (_clip(result, sources, kind) for kind in ("truths", "candidates"))
    known = series(history, result.platform, result.case_id) if history else {}
    return CaseView(result, _frames(result, truth, made), _waves(truth, made), _trends(result, known))


def _clip(result: CaseResult, sources: Sequence[Path], kind: str) -> Clip | None:
    for source in reversed(sources):
        folder = find(source / kind, result.platform, result.case_id)
        if folder:
            try:
                return load(folder)
            except RequestError:  # a damaged picture must not cost the whole report
                continue
    return None


def _frames(result: CaseResult, truth: Clip | None, made: Clip | None) -> list[FrameView]:
    before, after = (clip.frames if clip else {} for clip in (truth, made))
    views = []
    for index in _shown(result, sorted(before.keys() | after.keys())):
        a, b = before.get(index), after.get(index)
        comparable = a is not None and b is not None and a.shape == b.shape
        views.append(
            FrameView(
                index,
                page_images.frame_uri(a) if a is not None else None,
                page_images.frame_uri(b) if b is not None else None,
                page_images.difference_uri(a, b) if comparable and a is not None and b is not None else None,
            )
        )
    return views


def _shown(result: CaseResult, indices: list[int]) -> list[int]:
    worst = {figure.where for figure in result.figures}
    named = [index for index in indices if f"frame {index}" in worst]
    spread = [indices[i * (len(indices) - 1) // 2] for i in range(3)] if indices else []
    return sorted(list(dict.fromkeys([*named, *spread]))[: max(FRAMES_SHOWN, len(named))])


def _waves(truth: Clip | None, made: Clip | None) -> list[tuple[str, Markup, str]]:
    clips = [(name, clip.pcm) for name, clip in (("ground truth", truth), ("this run", made)) if clip]
    if not clips:
        return []
    loudest = max(float(spectrogram_db(pcm.mean(axis=0)).max()) for _, pcm in clips)
    peak = max(float(np.abs(pcm).max(initial=1e-6)) for _, pcm in clips)  # both on one scale
    return [
        (
            name,
            Markup(page_images.waveform_svg(pcm / np.float32(peak), style)),  # our own numbers only
            page_images.spectrogram_uri(pcm.mean(axis=0), loudest),
        )
        for (name, pcm), style in zip(clips, ("truth", "made"), strict=False)
    ]


def _trends(result: CaseResult, known: Series) -> dict[str, Markup]:
    limits = {figure.name: figure.limit for figure in result.figures}
    return {
        name: Markup(page_images.trend_svg([value for _, value in known[name]], limit))
        for name, limit in limits.items()
        if name in known
    }
