"""The page in a real browser: the three tasks, progress, playing, refusals, keyboard, a phone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.service.browser import chromium
from tests.service.client import LiveServer, wait_for
from tests.service.fake_worker import write

CSS, ENTER, SPACE, RIGHT = "css selector", "\ue007", " ", "\ue014"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as window:
        yield window


@pytest.fixture
def page(browser: Any, server: LiveServer) -> Iterator["Page"]:
    browser.get(f"http://127.0.0.1:{server.port}/")
    page = Page(browser)
    wait_for(lambda: "ready" in page.text("#server"))
    browser.get_log("browser")
    yield page
    faults = [e["message"] for e in browser.get_log("browser") if e["level"] == "SEVERE"]
    assert [f for f in faults if not is_refusal(f)] == []


def is_refusal(fault: str) -> bool:
    """Whether Chromium's line is a refusal that a test may meet: of a wrong field, or of cancelling a video that
    has ended in the moment of the click."""
    return "status of 400" in fault or ("/cancel" in fault and "status of 409" in fault)


class Page:
    def __init__(self, window: Any) -> None:
        self.window = window

    def one(self, selector: str) -> Any:
        return self.window.find_element(CSS, selector)

    def text(self, selector: str) -> str:
        return str(
            self.window.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)
        )

    def fill(self, selector: str, text: str) -> None:
        self.one(selector).clear()
        self.one(selector).send_keys(text)

    def pick(self, task: str) -> None:
        self.window.execute_script("document.querySelector(`input[value=${arguments[0]}]`).click()", task)

    def small(self) -> None:
        """Settings that make the smallest video."""
        self.window.execute_script("document.querySelector('details').open = true")
        self.fill("#short_edge", "64")
        self.fill("#duration_seconds", "4")

    def send(self) -> str:
        before = self.first()
        self.one("#send").click()
        return str(wait_for(lambda: (i := self.first()) != before and i))

    def first(self) -> str | None:
        found: str | None = self.window.execute_script("return document.querySelector('.card')?.dataset.id")
        return found

    def state(self, video: str) -> str:
        return self.text(f'[data-id="{video}"] .state')


def test_text_to_video_with_plan_progress_and_playing(page: Page) -> None:
    page.small()
    page.fill("#prompt", "slow 0.3 a lion at dusk")
    assert "107 frames" in wait_for(lambda: page.text("#plan"))
    video = page.send()
    wait_for(lambda: "denoising step" in page.text(f'[data-id="{video}"] .detail'))
    assert "left" in page.text(f'[data-id="{video}"] .detail')
    assert int(page.one("progress").get_attribute("value")) > 0
    wait_for(lambda: page.state(video) == "Done")
    wait_for(lambda: page.window.find_elements(CSS, ".screen button img"))
    page.one(".screen button").click()
    played = (
        "const v = document.querySelector('video'); return v && v.currentTime > 0 && v.webkitAudioDecodedByteCount > 0"
    )
    wait_for(lambda: page.window.execute_script(played))


def test_first_image(page: Page, tmp_path: Path) -> None:
    Image.new("RGB", (640, 360), "teal").save(tmp_path / "first.png")
    page.pick("fl2va")
    page.small()
    page.fill("#prompt", "from a picture")
    page.one(".slot[data-index='0'] input").send_keys(str(tmp_path / "first.png"))
    assert "128×64" in wait_for(lambda: page.text("#plan"))
    assert page.one(".slot[data-index='0'] img").get_attribute("alt") == "First image: first.png"
    video = page.send()
    wait_for(lambda: page.state(video) == "Done")


def test_references_keep_their_order_and_labels(page: Page, tmp_path: Path) -> None:
    Image.new("RGB", (640, 360), "teal").save(tmp_path / "face.png")
    write(tmp_path / "clip.mp4", 1, frames=72)
    page.pick("ref2va")
    page.small()
    page.fill("#prompt", "<Picture 1> in <Video 1>")
    page.one("#add-reference input").send_keys(f"{tmp_path / 'clip.mp4'}\n{tmp_path / 'face.png'}")
    wait_for(lambda: len(page.window.find_elements(CSS, "#reference-list li")) == 2)
    labels = [e.text for e in page.window.find_elements(CSS, "#reference-list .label")]
    assert labels == ["<Video 1>", "<Picture 1>"]
    page.window.find_elements(CSS, "#reference-list [aria-label='Move face.png up']")[0].click()
    assert [e.text for e in page.window.find_elements(CSS, "#reference-list .label")] == ["<Picture 1>", "<Video 1>"]
    assert "frames" in wait_for(lambda: page.text("#plan"))
    video = page.send()
    wait_for(lambda: page.state(video) == "Done")
    kinds = "return document.querySelector('.card').video.request.conditions.map((c) => c.type)"
    assert page.window.execute_script(kinds) == ["image", "video"]


def test_a_refusal_is_readable_and_marks_the_field(page: Page) -> None:
    page.fill("#prompt", "a lion")
    page.fill("#duration_seconds", "99")
    message = wait_for(lambda: page.one("#problem").text)
    assert message == "Seconds: 99.0 is not usable: a number from 4 to 15"
    assert page.one("#duration_seconds").get_attribute("aria-invalid") == "true"
    page.fill("#duration_seconds", "5")
    assert wait_for(lambda: page.text("#plan")) and not page.one("#problem").is_displayed()


def test_cancel_another_seed_use_again_and_delete(page: Page) -> None:
    page.small()
    page.fill("#prompt", "slow 1 a cat")
    video = page.send()
    wait_for(lambda: page.state(video) == "Running")
    page.one(f'[data-id="{video}"] .cancel').click()
    wait_for(lambda: page.state(video) == "Cancelled")
    page.one(f'[data-id="{video}"] .again').click()
    second = wait_for(lambda: (i := page.first()) != video and i)
    assert f"seed {42}," not in page.text(f'[data-id="{second}"] .size')
    page.one(f'[data-id="{second}"] .cancel').click()
    wait_for(lambda: page.state(second) == "Cancelled")
    page.one(f'[data-id="{second}"] .edit').click()
    assert page.one("#prompt").get_attribute("value") == "slow 1 a cat"
    page.window.execute_script("window.confirm = () => true")
    page.one(f'[data-id="{second}"] .delete').click()
    wait_for(lambda: page.first() == video)


def test_eight_tabs_with_more_videos_than_a_browser_has_connections(browser: Any, page: Page) -> None:
    """Chromium opens six connections to a host; each stream holds one, and all tabs share it."""
    address, first = browser.current_url, browser.current_window_handle
    page.small()
    page.fill("#prompt", "slow 0.5 a queue")
    made = [page.send() for _ in range(8)]
    tabs = [first]
    try:
        for _ in range(7):
            browser.switch_to.new_window("tab")
            tabs.append(browser.current_window_handle)
            browser.get(address)
        for tab in tabs:
            browser.switch_to.window(tab)
            wait_for(lambda: page.state(made[-1]) == "Waiting", 5)
        browser.execute_script(
            "window.slow = 0; const began = performance.now();"
            "fetch('/v1/models').then(() => { window.slow = performance.now() - began + 1; })"
        )
        assert 0 < wait_for(lambda: browser.execute_script("return window.slow"), 5) < 4000
        page.one(f'[data-id="{made[-1]}"] .cancel').click()
        browser.execute_script("window.confirm = () => true")
        page.one(f'[data-id="{made[-2]}"] .delete').click()
        for tab in tabs:  # told by the stream alone: looking again does not take a card away
            browser.switch_to.window(tab)
            wait_for(lambda: page.state(made[-1]) == "Cancelled", 3)
            wait_for(lambda: page.state(made[-2]) == "", 3)
        running = wait_for(lambda: next((v for v in made if page.state(v) == "Running"), None))
        wait_for(
            lambda: "denoising step" in page.text(f'[data-id="{running}"] .detail') or page.state(running) == "Done"
        )
    finally:
        for tab in tabs[1:]:
            browser.switch_to.window(tab)
            browser.close()
        browser.switch_to.window(first)
    for video in made[:-2]:
        page.one(f'[data-id="{video}"] .cancel').is_displayed() and page.one(f'[data-id="{video}"] .cancel').click()


def test_a_list_from_before_the_end_does_not_bring_it_back_and_an_opened_stream_looks_again(
    page: Page, http: httpx.Client
) -> None:
    page.small()
    page.fill("#prompt", "a lion")
    video = page.send()
    wait_for(lambda: page.state(video) == "Done")
    call = (
        "const [name, data, done] = arguments; import('/web/video_cards.js').then((h) => { h[name](...data); done(); })"
    )
    early = {**http.get(f"/v1/videos/{video}").json(), "status": "in_progress"}
    page.window.execute_async_script(call, "show", [early])
    assert page.state(video) == "Done"
    page.window.execute_script("document.querySelector('.card').remove()")
    page.window.execute_async_script(call, "heard", ["open", {}])
    wait_for(lambda: page.state(video) == "Done", 3)


def test_a_seed_beyond_what_a_number_of_javascript_holds(page: Page, http: httpx.Client) -> None:
    seed = 2**63 - 1  # the largest one; as a float it is 2**63
    page.small()
    page.fill("#prompt", f'a lion, "seed":{seed} in its words')
    page.fill("#seed", str(seed))
    video = page.send()
    request = http.get(f"/v1/videos/{video}").json()["request"]
    assert request["seed"] == seed and f'"seed":{seed} in' in request["prompt"]
    assert f"seed {seed}," in page.text(f'[data-id="{video}"] .size')
    page.fill("#seed", "1")
    page.one(f'[data-id="{video}"] .edit').click()
    assert page.one("#seed").get_attribute("value") == str(seed)
    wait_for(lambda: page.state(video) == "Done")


def test_adapters_with_their_strengths(page: Page, http: httpx.Client) -> None:
    """Chosen from the server's folder, told on the card, there again with Use again, gone when removed."""
    page.small()
    page.fill("#prompt", "a lion")
    for name in ("cel shading", "rain"):
        page.window.execute_script(
            "const s = document.querySelector('#add-adapter');"
            "s.value = arguments[0]; s.dispatchEvent(new Event('change'))",
            name,
        )
    assert [row.text for row in page.window.find_elements(CSS, "#adapter-list .name")] == ["cel shading", "rain"]
    assert not page.one("#add-adapter").is_enabled()
    page.fill("#adapter-list li:last-child .exact", "-0.5")
    assert page.one("#adapter-list li:last-child input[type=range]").get_attribute("value") == "-0.5"
    video = page.send()
    chosen = http.get(f"/v1/videos/{video}").json()["request"]["adapters"]
    assert [(a["name"], a["strength"]) for a in chosen] == [("cel shading", 1), ("rain", -0.5)]
    assert "cel shading at 1, rain at -0.5" in page.text(f'[data-id="{video}"] .size')
    for button in page.window.find_elements(CSS, "#adapter-list button"):
        button.click()
    assert page.window.find_elements(CSS, "#adapter-list li") == []
    page.one(f'[data-id="{video}"] .edit').click()
    assert [row.text for row in page.window.find_elements(CSS, "#adapter-list .name")] == ["cel shading", "rain"]
    wait_for(lambda: page.state(video) == "Done")
    for button in page.window.find_elements(CSS, "#adapter-list button"):
        button.click()


def test_used_again_it_keeps_what_the_form_has_no_place_for(page: Page, http: httpx.Client) -> None:
    """Shifts and sigmas of the video are sent again, and told, until they are dropped; Ctrl+Enter sends."""
    sigmas = {"video": [1, 0.5, 0], "audio": [1, 0.25, 0]}
    target = {"short_edge": 64, "duration_seconds": 4}
    for more, words in (({"sigmas": sigmas}, "sigmas of 2 evaluations"), ({"flow_shift": 9.0}, "flow_shift 9")):
        made = http.post("/v1/videos", json={"task": "t2va", "prompt": "a lion", "target": target, **more}).json()["id"]
        wait_for(lambda made=made: page.window.find_elements(CSS, f'[data-id="{made}"] .edit'))
        page.one(f'[data-id="{made}"] .edit').click()
        assert words in page.text("#kept")
        before = page.first()
        page.one("#prompt").send_keys("\ue009" + ENTER)
        video = str(wait_for(lambda before=before: (i := page.first()) != before and i))
        request = http.get(f"/v1/videos/{video}").json()["request"]
        assert {name: request[name] for name in more} == more
        wait_for(lambda video=video: page.state(video) == "Done")
    page.one("#kept button").click()
    assert not page.one("#kept").is_displayed()
    assert "flow_shift" not in http.get(f"/v1/videos/{page.send()}").json()["request"]


def test_by_keyboard_alone(page: Page) -> None:
    page.small()
    active = page.window.switch_to.active_element
    page.window.execute_script("document.querySelector('input[value=t2va]').focus()")
    active = page.window.switch_to.active_element
    active.send_keys(RIGHT)
    assert page.window.execute_script("return document.querySelector('form').elements.task.value") == "fl2va"
    page.window.switch_to.active_element.send_keys("\ue012")
    page.window.switch_to.active_element.send_keys("\ue004")
    prompt = page.window.switch_to.active_element
    assert prompt.get_attribute("id") == "prompt"
    prompt.send_keys("by hand")
    before = page.first()
    for _ in range(20):
        page.window.switch_to.active_element.send_keys("\ue004")
        if page.window.switch_to.active_element.get_attribute("id") == "send":
            break
    page.window.switch_to.active_element.send_keys(ENTER)
    video = wait_for(lambda: (i := page.first()) != before and i)
    wait_for(lambda: page.state(video) == "Done")


def test_on_a_phone_nothing_is_wider_than_the_screen(browser: Any, page: Page) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    )
    try:
        for task in ("t2va", "fl2va", "ref2va"):
            page.pick(task)
            assert browser.execute_script("return document.documentElement.scrollWidth <= 360")
        heights = "return [...document.querySelectorAll('button, select')].map((b) => b.offsetHeight)"
        assert all(height == 0 or height >= 32 for height in browser.execute_script(heights))
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_api_page_lists_the_routes(browser: Any, server: LiveServer) -> None:
    browser.get(f"http://127.0.0.1:{server.port}/docs")
    wait_for(lambda: "POST /v1/videos" in browser.find_element(CSS, "main").text)
