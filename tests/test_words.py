"""The field's words: rooms that were gone through keep to them, in names, docstrings and comments."""

import re
import tokenize
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "h3serve"
ROOMS = ("core", "models", "weights", "runtime", "pipeline", "prompts", "system")
# what is not said -> what is
INSTEAD = {
    "team": "process group",
    "follower": "rank",
    "courier": "thread",
    "visiting": "offload",
    "caretaker": "janitor",
    "film": "video",
    "figures": "metrics",
    "presentation": "prompt",
    "canary": "checksums",
}
PATTERN = re.compile(rf"(?<![a-z])({'|'.join(INSTEAD)})s?(?![a-z])", re.IGNORECASE)


@pytest.mark.parametrize("room", ROOMS)
def test_words_of_the_field(room: str) -> None:
    found = []
    for file in sorted((PACKAGE / room).rglob("*.py")):
        with tokenize.open(file) as source:
            for token in tokenize.generate_tokens(source.readline):
                if token.type in (tokenize.NAME, tokenize.COMMENT, tokenize.STRING):
                    for word in PATTERN.findall(token.string):
                        found.append(f"{file.relative_to(PACKAGE)}:{token.start[0]}: {word}: {INSTEAD[word.lower()]}")
    assert not found, "\n".join(found)
