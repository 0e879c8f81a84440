"""`h3serve submit | watch | list | download | cancel` against a server with a fake model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from h3serve.cli.main import run
from tests.service.client import LiveServer, live, wait_for

SMALL = ("--short-edge", "64", "--duration", "4", "--seed", "5")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live(tmp_path_factory.mktemp("live") / "data") as server:
        with server.client() as http:
            wait_for(lambda: http.get("/ready").status_code == 200)
        yield server


@pytest.fixture(autouse=True)
def _here(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H3SERVE_URL", f"http://127.0.0.1:{server.port}")


def test_a_video_is_sent_waited_for_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["submit", "--prompt", "slow 0.1 a lion", *SMALL, "--out", str(tmp_path / "a.mp4")]) == 0
    said = capsys.readouterr()
    video = said.out.strip()
    assert "denoise" in said.err and "\x1b" not in said.err  # no control characters into a pipe
    assert run(["download", video, "--out", str(tmp_path / "b.mp4")]) == 0
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
    assert run(["watch", video, "--quiet"]) == 0
    capsys.readouterr()
    assert run(["list", "--limit", "5"]) == 0
    assert f"{video}  completed    100 %  128x64  slow 0.1 a lion\n" in capsys.readouterr().out


def test_one_that_is_cancelled_or_fails_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["submit", "--prompt", "slow 5 a lion", *SMALL]) == 0
    video = capsys.readouterr().out.strip()
    assert run(["cancel", video]) == 0
    assert run(["watch", video, "--quiet"]) == 1
    assert f"video {video} cancelled" in capsys.readouterr().err


def test_what_the_server_refuses_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", "no-such"]) == 1
    assert capsys.readouterr().err == "h3serve: there is no video 'no-such'\n"
    assert run(["submit", "--prompt", "x", *SMALL, "--lora", "style"]) == 2
    assert "this server has no adapter folder" in capsys.readouterr().err
