import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from h3serve.guard import page_images
from h3serve.guard.guard_report import explain, junit, table, write_all
from h3serve.guard.guard_results import CaseResult, Report, read_report
from h3serve.guard.history import record
from h3serve.guard.metric import Figure, at_least
from h3serve.guard.pcm import to_pcm
from h3serve.guard.truth_store import Budget, Clip, Facts, save
from tests.guard.conftest import SOUND_RATE

SLOW = Figure(name="total time", value=9, limit=5, better="low", unit=" s", kind="meter")


def example() -> Report:
    failing = CaseResult(
        case_id="rain",
        platform="cpu",
        figures=(at_least("SSIM", 0.5, 0.92, where="frame 24"), at_least("PSNR", 40, 24, unit=" dB")),
        seconds=3,
        attempts=2,
    )
    broken = CaseResult(case_id="hail", platform="cpu", problems=("model folder </details> & more is missing\x00",))
    passing = CaseResult(case_id="snow", platform="cpu", figures=(at_least("SSIM", 0.99, 0.92),), notes=("faster",))
    return Report(
        run="run-2", started="2025-01-02T00:00:00", made_with="test", kind="nightly", results=(failing, broken, passing)
    )


@pytest.fixture
def run_folder(tmp_path, clip, sound):
    """A run that kept the clips of one of its cases."""
    folder, pcm = tmp_path / "run-2", to_pcm(sound, SOUND_RATE)
    truth = Clip(Facts(frames=48, made_with="test"), {i: clip[i] for i in (0, 24, 47)}, pcm)
    made = Clip(Facts(frames=48, made_with="test"), {i: 255 - clip[i] for i in (0, 24, 47)}, pcm * np.float32(0.5))
    save(truth, folder / "truths" / "cpu" / "rain", Budget(10**9))
    save(made, folder / "candidates" / "cpu" / "rain", Budget(10**9))
    return folder


def test_terminal_says_what_failed_and_why_in_80_columns():
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(table(example()))
    text = console.export_text()
    assert "run-2: FAILED" in text
    assert re.search(r"rain .*FAIL .*1/2 .*2 ", text)
    assert re.search(r"snow .*pass .*1/1 ", text)
    assert explain(example())[:2] == ["rain:", "  SSIM is 0.5 (frame 24), should be at least 0.92"]
    assert explain(example())[-2:] == ["snow:", "  faster"]


def test_junit_counts_failures_and_errors():
    suite = ET.fromstring(junit(example()))
    assert {key: suite.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
    }
    cases = {case.get("name"): case for case in suite}
    assert "SSIM is 0.5" in cases["rain"].find("failure").get("message")
    assert "</details>" in cases["hail"].find("error").get("message")
    assert next(iter(cases["snow"])).tag == "system-out"


def test_junit_of_meters_alone_is_a_failure():
    report = example().model_copy(update={"results": (CaseResult(case_id="a", platform="cpu", figures=(SLOW,)),)})
    assert ET.fromstring(junit(report)).get("failures") == "1"


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.sources, self.links = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("src", "srcset", "data", "action") or (name == "href" and tag == "link"):
                self.sources.append(value)
            elif name == "href":
                self.links.append(value)


def test_page_is_whole_and_self_contained(run_folder, tmp_path):
    history = tmp_path / "history.sqlite"
    for number in (1, 2):
        record(history, example().model_copy(update={"run": f"run-{number}", "started": f"2025-01-0{number}"}))
    write_all(example(), run_folder, sources=[run_folder], history=history)
    text = (run_folder / "report.html").read_text()
    page = Page(text)
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert set(page.links) == {"#cpu-rain", "#cpu-hail", "#cpu-snow"}
    assert "script" not in page.tags and "url(" not in text
    assert len(page.sources) == 3 * 3 + 2  # truth, run and difference of three frames; two spectrograms
    assert text.count('class="wave') == 2
    assert text.count('class="trend"') == 3
    assert "&lt;/details&gt; &amp; more" in text
    assert page.tags.count("details") == 3
    assert read_report(run_folder) == example()


def test_page_without_kept_clips_still_tells_the_figures(tmp_path):
    write_all(example(), tmp_path, sources=[tmp_path])
    text = (tmp_path / "report.html").read_text()
    assert "<img" not in text and "SSIM" in text


def test_page_survives_a_damaged_clip(run_folder):
    (run_folder / "candidates" / "cpu" / "rain" / "frame_0024.png").write_bytes(b"torn")
    write_all(example(), run_folder, sources=[run_folder])
    assert (run_folder / "report.html").read_text().count("not kept") == 6


def test_large_frames_are_shrunk():
    assert len(page_images.frame_uri(np.zeros((768, 1344, 3), np.uint8))) < 3000


def test_trend_marks_the_limit_and_the_last_run():
    drawing = page_images.trend_svg([1.0, 0.5, 0.0], 0.5)
    assert 'points="0.0,3.0 60.0,12.0 120.0,21.0"' in drawing
    assert 'y1="12.0"' in drawing and 'cx="120.0" cy="21.0"' in drawing
    assert "polyline" in page_images.trend_svg([2.0], 2.0)


def test_difference_map_is_dark_where_equal_and_bright_where_not(clip):
    import base64
    import io

    from PIL import Image

    other = clip[0].copy()
    other[:, 64:] ^= 255
    uri = page_images.difference_uri(clip[0], other)
    heat = np.array(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))
    assert (heat[:, :64] == heat[0, 0]).all() and heat[:, 70:].mean() > 3 * heat[:, :64].mean()
