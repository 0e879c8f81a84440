"""Help with the prompt on the page: complaints while one types, the form to fill in, a prompt rewritten."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.prompts.prompt_texts import correct
from tests.prompts.stub_endpoint import Stub, stub_endpoint
from tests.service.browser import chromium
from tests.service.client import live, wait_for
from tests.service.test_page import CSS, Page

GOOD = correct()["harbour"][1]


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    with stub_endpoint(GOOD) as stub:
        yield stub


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, stub: Stub) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("prompt")
    enhance = {"enhance_url": stub.url, "enhance_model": "writer"}
    with live(folder / "data", enhance=enhance) as server, chromium(folder / "profile") as window:
        with server.client() as http:
            wait_for(lambda: http.get("/ready").status_code == 200)
        window.get(f"http://127.0.0.1:{server.port}/")
        page = Page(window)
        wait_for(lambda: "ready" in page.text("#server"))
        yield page


def complaints(page: Page) -> list[str]:
    found = page.window.find_elements(CSS, "#complaints button")
    return [element.text for element in found]


def put(page: Page, text: str) -> None:
    """At once: a driver types a long text for seconds."""
    prompt, tell = page.one("#prompt"), "arguments[0].dispatchEvent(new Event('input', { bubbles: true }))"
    page.window.execute_script(f"arguments[0].value = arguments[1]; {tell}", prompt, text)


def selected(page: Page) -> str:
    script = "const p = document.querySelector('#prompt'); return p.value.slice(p.selectionStart, p.selectionEnd)"
    return str(page.window.execute_script(script))


def test_complaints_while_one_types_show_where(page: Page) -> None:
    page.fill("#duration_seconds", "10")
    page.fill("#prompt", "a lion")
    assert "plain text" in wait_for(lambda: complaints(page))[0]
    # 😀 is one character to the server and two to the browser
    put(page, GOOD.replace("Watercolor", "Watercolor 😀").replace("At 00:07.250,", "At 00:03.000,"))
    wait_for(lambda: complaints(page) == ["cuts come one after the other: 00:03.000 is not after 3.500 s"])
    page.one("#complaints button").click()
    assert selected(page) == "[Shot 3] At 00:03.000,"
    put(page, GOOD)
    wait_for(lambda: complaints(page) == [])


def test_the_form_is_laid_out_for_the_task_and_taken_back(page: Page, tmp_path: Path) -> None:
    Image.new("RGB", (640, 360), "teal").save(tmp_path / "last.png")
    put(page, "a lion turns round")
    page.pick("fl2va")
    page.one(".slot[data-index='-1'] input").send_keys(str(tmp_path / "last.png"))
    page.one("#prompt-layout").click()
    value = "return document.querySelector('#prompt').value"
    wait_for(lambda: "aligns with the 10.12-second mark" in page.window.execute_script(value))
    wait_for(lambda: any("fill in" in text for text in complaints(page)))
    page.one("#prompt-undo").click()
    assert page.window.execute_script(value) == "a lion turns round"
    page.one(".slot[data-index='-1'] button").click()
    page.pick("t2va")


def test_rewritten(page: Page, stub: Stub) -> None:
    put(page, "a harbour")
    page.one("#prompt-enhance").click()
    wait_for(lambda: page.window.execute_script("return document.querySelector('#prompt').value") == GOOD)
    assert "a harbour" in stub.asked[-1]["messages"][1]["content"][0]["text"]
    page.one("#prompt-undo").click()
    assert page.window.execute_script("return document.querySelector('#prompt').value") == "a harbour"
