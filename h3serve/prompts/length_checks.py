"""Lengths: sentences of sound and music, words of descriptions, and speech that the video has time for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from h3serve.prompts.complaint import Complaint
from h3serve.prompts.official_form import (
    FEWEST_WORDS,
    GENERATED_WORDS,
    MOST_WORDS,
    SENTENCES,
    SPOKEN,
    SUMMARY,
    SUMMARY_WORDS,
    PromptNeeds,
    sentence_count,
    words_outside,
)
from h3serve.prompts.prompt_parts import PromptParts

# Ours: faster than anybody speaks. Scripts without spaces are counted by the character.
_WORDS_A_SECOND, _CHARACTERS_A_SECOND = 5.0, 9.0
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]")
_DENSE = 3  # ours: a description with so many lines of speech may be shorter


def check_lengths(parts: PromptParts, needs: PromptNeeds) -> Iterator[Complaint]:
    """Complaints about what is too long or too short."""
    for name, most in SENTENCES.items():
        field = parts.field(name)
        if field is not None and (count := sentence_count(field.text)) > most:
            yield Complaint("length", f"{name} has {count} sentences, at most {most}", field.start, field.end)
    summary = parts.field(SUMMARY)
    if needs.task == "ref2va" and summary is not None and (count := words_outside(summary.text)) > SUMMARY_WORDS:
        said = f"the summary has {count} words: one short paragraph, at most {SUMMARY_WORDS}"
        yield Complaint("length", said, summary.start, summary.end)
    field = parts.field(needs.description)
    if field is None or not field.text:
        return
    least, most = _bounds(parts, needs)
    if not least <= (count := words_outside(field.text)) <= most:
        yield Complaint("length", f"{field.name} has {count} words: {least} to {most}", field.start, field.end)
    if needs.seconds is not None and (spoken := speaking_seconds(field.text)) > needs.seconds:
        said = f"what is said takes {spoken:.1f} s at the least, the video has {needs.seconds:.1f} s"
        yield Complaint("length", said, field.start, field.end)


def speaking_seconds(text: str) -> float:
    """The fewest seconds in which all that is between `<d>` and `</d>` can be said."""
    total = 0.0
    for words in SPOKEN.findall(text):
        said = re.sub(r"^\s*\[[^\]]*\]|<[^>]*>", "", words)
        unspaced = len(_UNSPACED.findall(said))
        total += unspaced / _CHARACTERS_A_SECOND + words_outside(_UNSPACED.sub(" ", said)) / _WORDS_A_SECOND
    return total


def _bounds(parts: PromptParts, needs: PromptNeeds) -> tuple[int, int]:
    """The fewest and the most words of the description; edits are as long as what they edit."""
    if needs.task != "ref2va":
        return FEWEST_WORDS, MOST_WORDS
    summary, field = parts.field(SUMMARY), parts.field(needs.description)
    kinds = summary.text.partition("]")[0] if summary is not None else ""
    if "video editing" in kinds or "video continuation" in kinds:
        return FEWEST_WORDS, MOST_WORDS
    dense = field is not None and len(SPOKEN.findall(field.text)) >= _DENSE
    return FEWEST_WORDS if dense else GENERATED_WORDS[0], GENERATED_WORDS[1]
