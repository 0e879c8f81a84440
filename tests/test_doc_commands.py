"""Every command that the documents show is read by the program it is for; those for a server are sent to one."""

import argparse
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image

from h3serve.cli.main import UsageError, make_app
from h3serve.service.http.api_keys import add_key
from tests.service.client import live, wait_for
from tests.service.fake_worker import write

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
PROGRAMS = ("h3serve ", "python -m ", "scripts/", "curl ")
INLINE = re.compile(r"`((?:h3serve|python -m|scripts/|curl) ?[^`]*)`")
OPEN = re.compile(r"[\[\]|…]|\bN\b")  # a form and not a command: `scale N [--url URL]`
ADDRESS = "127.0.0.1:8000"


def shown(page: Path) -> list[tuple[str, bool]]:
    """The commands of a page: lines of its blocks, continued lines joined; and, not whole, those named in the text."""
    text = page.read_text()
    blocks = "\n".join(re.findall(r"```[a-z]*\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    named = INLINE.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = [(line.split(" #")[0], True) for line in blocks.splitlines()]
    lines += [(line, False) for line in named if not OPEN.search(line)]
    parts = [(part.strip(), whole) for line, whole in lines for part in re.split(r" & | \|\| | && ", line)]
    return [(part, whole) for part, whole in parts if part.startswith(PROGRAMS)]


COMMANDS = [(page.name, *command) for page in PAGES for command in dict.fromkeys(shown(page))]


def of(program: str) -> list[Any]:
    found = [command for command in COMMANDS if command[1].startswith(program)]
    return [pytest.param(line, whole, id=f"{page}: {line[:60]}") for page, line, whole in found]


@pytest.mark.parametrize(("line", "whole"), of("h3serve "))
def test_the_command_line_reads_it(line: str, whole: bool) -> None:
    command, words = typer.main.get_command(make_app()), shlex.split(line)[1:]
    while words and words[0] in (inner := getattr(command, "commands", {})):
        command = inner[words.pop(0)]
    try:
        command.make_context("h3serve", words)  # reads the arguments and goes no further
    except UsageError as error:
        assert str(error).startswith("Missing parameter") and not whole, error


class Parsed(Exception):
    """The arguments were read."""


@pytest.mark.parametrize(("line", "whole"), of("python -m "))
def test_a_module_reads_it(line: str, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line)
    module = importlib.import_module(words[2])
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{words[2]}.__main__")
    parse = argparse.ArgumentParser.parse_args

    def stop(self: argparse.ArgumentParser, *given: Any) -> None:
        parse(self, *given)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(sys, "argv", words[2:])
    with pytest.raises(Parsed if whole else (Parsed, SystemExit)):
        module.main()


@pytest.mark.parametrize(("line", "whole"), of("scripts/"))
def test_a_script_is_there(line: str, whole: bool) -> None:
    assert os.access(ROOT / shlex.split(line)[0], os.X_OK)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the lines name: an image, a video, a sound (the video's) and a request for the two."""
    folder = tmp_path_factory.mktemp("documented")
    Image.new("RGB", (320, 180), "teal").save(folder / "first.png")
    write(folder / "reference_video.mp4", 1, frames=72)
    shutil.copy(folder / "reference_video.mp4", folder / "reference_audio.mp3")
    conditions = [
        {"type": "video", "uri": "reference_video.mp4", "role": "reference"},
        {"type": "audio", "uri": "reference_audio.mp3", "role": "reference"},
    ]
    target = {"short_edge": 768, "aspect_ratio": "auto", "duration_seconds": 5}
    request = {"task": "ref2va", "prompt": "a", "conditions": conditions, "target": target, "seed": 0}
    (folder / "request.json").write_text(json.dumps(request))
    return folder


@pytest.mark.parametrize(("line", "whole"), of("curl "))
def test_a_server_takes_it(line: str, whole: bool, files: Path, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    assert whole and ADDRESS in line
    settings: dict[str, str] = {}
    if "/v1/admin/" in line:  # shown for a server with keys, weights and one partition
        (tmp_path / "weights" / "finetune-3").mkdir(parents=True)
        line = line.replace("$KEY", add_key(tmp_path / "keys.json", "ops", is_admin=True))
        settings = {"keys": str(tmp_path / "keys.json"), "weights": str(tmp_path / "weights"), "partition": "fl2va"}
    with live(tmp_path / "data", **settings) as server:
        with server.client() as http:
            wait_for(lambda: http.get("/ready").status_code == 200)
        words = shlex.split(line.replace(ADDRESS, f"127.0.0.1:{server.port}"))
        words += ["--fail-with-body", "-sS", "--noproxy", "*"]
        done = subprocess.run(words, cwd=files, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_commands_are_found() -> None:
    found = {program: sum(line.startswith(program) for _, line, whole in COMMANDS if whole) for program in PROGRAMS}
    assert all(found[program] >= least for program, least in zip(PROGRAMS, (15, 6, 2, 3), strict=True)), found
