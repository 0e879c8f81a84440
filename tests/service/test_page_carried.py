"""A video file fills the form of the page: chosen, or dropped beside the places for media."""

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from h3serve.core.request import parse_request
from h3serve.core.video_record import video_record
from h3serve.media.write.mp4_writer import mp4_writer
from tests.service.browser import chromium
from tests.service.client import LiveServer, wait_for
from tests.service.test_page import Page

FIELDS = {
    "task": "fl2va",
    "prompt": 'a lion, "seed": 1, 狮子 😀',
    "conditions": [{"type": "image", "role": "keyframe", "frame_index": -1, "uri": "/secret/a.png"}],
    "target": {"short_edge": 64, "aspect_ratio": "4:3", "duration_seconds": 4.5},
    "seed": 2**63 - 1,
    "num_inference_steps": 7,
    "solver": "multistep",
}


def made(path: Path, record: str | None) -> Path:
    with mp4_writer(path, width=64, height=64, preset="ultrafast", record=record) as writer:
        writer.write_audio(np.zeros((2, 16_000), np.float32) + 0.01)
        writer.write_frames(np.zeros((12, 64, 64, 3), np.uint8))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("carried")
    text = video_record(parse_request(FIELDS), version="1", quality="exact", checkpoint=None, adapters=[])
    return {"whole": made(folder / "lion.mp4", text), "bare": made(folder / "bare.mp4", None)}


@pytest.fixture(scope="module")
def page(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile")) as window:
        window.get(f"http://127.0.0.1:{server.port}/")
        page = Page(window)
        wait_for(lambda: "ready" in page.text("#server"))
        yield page


def values(page: Page) -> dict[str, str]:
    names = ("prompt", "short_edge", "aspect_ratio", "duration_seconds", "seed", "num_inference_steps", "solver")
    script = "return Object.fromEntries(arguments[0].map((n) => [n, document.getElementById(n).value]))"
    found: dict[str, str] = page.window.execute_script(script, names)
    return found


EXPECTED = {
    "prompt": FIELDS["prompt"],
    "short_edge": "64",
    "aspect_ratio": "4:3",
    "duration_seconds": "4.5",
    "seed": str(2**63 - 1),
    "num_inference_steps": "7",
    "solver": "multistep",
}


def test_chosen(page: Page, files: dict[str, Path]) -> None:
    page.one("#carried").send_keys(str(files["whole"]))
    note = wait_for(lambda: page.text("#carried-note"))
    assert note == "Filled in from lion.mp4. It does not hold its last image: put them in again."
    assert values(page) == EXPECTED
    assert page.window.execute_script("return document.querySelector('form').elements.task.value") == "fl2va"


def test_dropped_and_a_video_without_a_request(page: Page, files: dict[str, Path]) -> None:
    """What a drop does, with the bytes that the file has."""
    drop = """
      const [bytes, name, done] = arguments, data = new DataTransfer();
      data.items.add(new File([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], name, { type: 'video/mp4' }));
      const event = new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true });
      document.querySelector('main').dispatchEvent(event);
      done(event.defaultPrevented);
    """
    page.fill("#prompt", "something else")
    data = base64.b64encode(files["whole"].read_bytes()).decode()
    assert page.window.execute_async_script(drop, data, "lion.mp4") is True
    wait_for(lambda: values(page) == EXPECTED)
    data = base64.b64encode(files["bare"].read_bytes()).decode()
    page.window.execute_async_script(drop, data, "bare.mp4")
    wait_for(lambda: "bare.mp4 carries no request" in page.text("#problem"))
    assert values(page) == EXPECTED
    damaged = files["whole"].read_bytes()[:900]
    page.window.execute_async_script(drop, base64.b64encode(damaged).decode(), "cut.mp4")
    wait_for(lambda: "cut.mp4 carries no request" in page.text("#problem"))
