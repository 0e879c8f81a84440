"""Templates: once their blanks are filled in, the check has nothing to say."""

import re

import pytest

from h3serve.prompts.alignment_line import alignment_line
from h3serve.prompts.linter import check_form
from h3serve.prompts.prompt_template import prompt_template
from tests.prompts.prompt_texts import needs

SENTENCE = "A lantern swings above the pier while two men pull a net out of the black water and laugh. "


@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize(
    ("task", "keyframes", "given"),
    [
        ("t2va", "", ""),
        ("fl2va", "0", ""),
        ("fl2va", "-1", ""),
        ("fl2va", "0 -1", ""),
        ("ref2va", "", "image"),
        ("ref2va", "", "video_audio image audio image"),
        ("ref2va", "-1", "video"),
    ],
)
def test_a_filled_template_passes(task: str, keyframes: str, given: str, shots: int) -> None:
    wanted = needs(task, keyframes, given, "7")
    text = prompt_template(wanted, shots)
    assert {c.message.split()[0] for c in check_form(text, wanted) if c.kind == "fields"} == {"fill"}
    if task == "ref2va":  # as long as a description that is generated has to be
        text = text.replace("{what is seen, what happens, how the camera moves}", SENTENCE * 22)
    text = re.sub(r"\{[^{}]*\}", lambda found: " ".join(["A quiet place", *re.findall(r"<\w+ \d>", found[0])]), text)
    if task != "ref2va":
        text = text.replace("description: [Shot 1]", f"description: [Shot 1] {SENTENCE * 2}")
    assert check_form(text, wanted) == []


def test_cuts_divide_the_snapped_length() -> None:
    """7 s become 175 frames: 7.2917 s."""
    text = prompt_template(needs("t2va", seconds="7"), 3)
    assert re.findall(r"At (\S+),", text) == ["00:02.431", "00:04.861"]


@pytest.mark.parametrize(
    ("keyframes", "seconds", "line"),
    [
        (
            "0",
            "5",
            "For the target video, at 0.00 seconds into the target video, <Picture 1> (from [Shot 1]) is fully"
            " referenced.",
        ),
        (
            "-1",
            "6",
            "How the reference pictures align with the target video — <Picture 1> (from [Shot 2]) aligns with the"
            " 6.58-second mark of the target video.",
        ),
        (
            "0 -1",
            "8",
            "How the reference pictures align with the target video — Picture 1 (from Shot 1) aligns with the"
            " 0.00-second mark of the target video; Picture 2 (from Shot 2) aligns with the 8.00-second mark of the"
            " target video.",
        ),
    ],
)
def test_the_alignment_line_of_the_guide(keyframes: str, seconds: str, line: str) -> None:
    assert alignment_line(needs("fl2va", keyframes, "", seconds), shots=2) == line
