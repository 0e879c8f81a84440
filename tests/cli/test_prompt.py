"""`h3serve prompt`: check, template, enhance."""

import json
from pathlib import Path

import pytest

from h3serve.cli.main import run
from tests.prompts.prompt_texts import correct, request_of
from tests.prompts.stub_endpoint import stub_endpoint

GOOD = correct()["harbour"][1]


def test_check_of_a_request_a_text_file_and_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "request.json").write_text(json.dumps(request_of("t2va", "", "", "10", GOOD)))
    (tmp_path / "prompt.txt").write_text(GOOD + "\n")
    assert run(["prompt", "check", str(tmp_path / "request.json")]) == 0
    assert run(["prompt", "check", str(tmp_path / "prompt.txt"), "--duration", "10"]) == 0
    assert capsys.readouterr().out == "nothing to complain of\n" * 2
    assert run(["prompt", "check", str(tmp_path / "prompt.txt")]) == 1  # of 5 s, which become 5.167
    assert capsys.readouterr().out == "line 1, cuts: the video ends at 5.167 s, before the cut at 00:07.250\n"
    assert run(["prompt", "check", "--json", "--prompt", "A fox."]) == 1
    [complaint] = json.loads(capsys.readouterr().out)
    assert complaint["kind"] == "fields" and complaint["start"] == 0


def test_a_file_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prompt", "check", str(tmp_path / "no.txt")]) == 2
    assert "prompt file" in capsys.readouterr().err


def test_template(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prompt", "template", "--last-frame", "end.png", "--shots", "2", "--duration", "6"]) == 0
    said = capsys.readouterr().out
    assert "(from [Shot 2]) aligns with the 6.58-second mark" in said and "[Shot 2] At 00:03.292," in said


def test_enhance(capsys: pytest.CaptureFixture[str]) -> None:
    with stub_endpoint(GOOD) as stub:
        given = ["--prompt", "a harbour", "--duration", "10", "--enhance-url", stub.url, "--enhance-model", "writer"]
        assert run(["prompt", "enhance", *given]) == 0
        assert capsys.readouterr().out == GOOD + "\n"
        assert run(["prompt", "enhance", "--json", *given]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["original"] == "a harbour" and made["prompt"] == GOOD and made["tries"] == 1


def test_enhance_needs_an_endpoint_and_says_when_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prompt", "enhance", "--prompt", "a"]) == 2
    with stub_endpoint((500, b"")) as stub:
        assert run(["prompt", "enhance", "--prompt", "a", "--enhance-url", stub.url, "--enhance-model", "m"]) == 1
    assert capsys.readouterr().err.endswith("it answered 500\n")
