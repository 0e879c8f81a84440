"""Correct prompts in both languages of speech, as needs and text: `correct.txt`, written for these tests."""

import re
from pathlib import Path
from typing import Any

from h3serve.core.request import parse_request
from h3serve.prompts.official_form import PromptNeeds, needs_of


def request_of(task: str, keyframes: str, given: str, seconds: str, prompt: str = "a") -> dict[str, Any]:
    """The request of a prompt: keyframes as `0 -1`, references by their types."""
    conditions: list[dict[str, Any]] = [
        {"type": "image", "uri": "a.png", "role": "keyframe", "frame_index": int(index)} for index in keyframes.split()
    ]
    conditions += [{"type": kind, "uri": "a", "role": "reference"} for kind in given.split()]
    target = {"short_edge": 768, "duration_seconds": float(seconds)}
    return {"task": task, "prompt": prompt, "conditions": conditions, "target": target}


def needs(task: str, keyframes: str = "", given: str = "", seconds: str = "8") -> PromptNeeds:
    return needs_of(parse_request(request_of(task, keyframes, given, seconds)))


def correct() -> dict[str, tuple[PromptNeeds, str]]:
    text = (Path(__file__).parent / "correct.txt").read_text(encoding="utf-8")
    found = {}
    for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        head, _, prompt = part.partition("\n")
        name, task, keyframes, given, seconds = (cell.strip() for cell in head.split("|"))
        found[name] = (needs(task, keyframes, given, seconds), prompt.strip())
    return found
