"""Fields of the form: all there, once, in order, with something in them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from h3serve.prompts.complaint import Complaint
from h3serve.prompts.official_form import MUSIC, NOTHING, SOUNDSCAPE, SPOKEN, SUMMARY, TASK_TYPES, PromptNeeds
from h3serve.prompts.prompt_parts import Field, PromptParts

_BLANK = re.compile(r"\{[^{}\n]+\}")
_FENCE = re.compile(r"^[ \t]*```.*$", re.MULTILINE)
_NOT_THERE = re.compile(r"(?i)^(n/?a|none|nothing|no music|null|-)\W*$")
# Outside of speech and quotes the text is English: letters of other scripts are out of place.
_FOREIGN = re.compile(r"[\u0370-\u052f\u0590-\u06ff\u0900-\u0dff\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_ORIGINAL = re.compile(rf"{SPOKEN.pattern}|\"[^\"\n]*\"|“[^“”\n]*”", re.DOTALL)


def check_fields(parts: PromptParts, needs: PromptNeeds) -> Iterator[Complaint]:
    """Complaints about which fields there are, and about text that is outside of them."""
    if not parts.fields:
        names = ", ".join(f"{name}:" for name in needs.fields)
        yield Complaint("fields", f"plain text: the official form of {needs.task} has the fields {names}", 0, 0)
        return
    yield from _places(parts, needs)
    for field in parts.fields:
        yield from _one_field(field, parts, needs)
    for found in [*_BLANK.finditer(parts.text), *_FENCE.finditer(parts.text)]:
        said = "remove this mark" if "`" in found[0] else f"fill in {found[0]}"
        yield Complaint("fields", said, found.start(), found.end())
    rest = re.sub(r"^[^\n]*\n?", "", parts.preamble.lstrip(), count=1) if needs.task == "fl2va" else parts.preamble
    if rest.strip("` \t\r\n"):
        at = parts.preamble.find(rest.strip())
        yield Complaint(
            "fields", "nothing comes before the first field but an alignment line", at, at + len(rest.strip())
        )
    if (summary := parts.field(SUMMARY)) is not None and needs.task == "ref2va":
        yield from _task_types(summary, needs)


def check_language(parts: PromptParts) -> Iterator[Complaint]:
    """Complaints about text in another script than English has, outside of speech and of what is read on screen."""
    blanked = _ORIGINAL.sub(lambda found: " " * len(found[0]), parts.text)
    for found in _FOREIGN.finditer(blanked):
        said = "the description is English; another language belongs in <d>…</d> or, where it is read, in quotes"
        yield Complaint("language", said, found.start(), found.end())


def _places(parts: PromptParts, needs: PromptNeeds) -> Iterator[Complaint]:
    known, seen = needs.fields, list[str]()
    for field in parts.fields:
        span = (field.start, field.body)
        if field.name not in known:
            yield Complaint("fields", f"{field.name} is no field of {needs.task}", *span)
        elif field.name in seen:
            yield Complaint("fields", f"{field.name} is there twice", *span)
        elif any(known.index(before) > known.index(field.name) for before in seen):
            yield Complaint("fields", f"the order is {', '.join(known)}", *span)
        if field.name in known:
            seen.append(field.name)
    for name in known:
        if name not in seen:
            yield Complaint("fields", f"{name}: is missing", len(parts.text), len(parts.text))


def _one_field(field: Field, parts: PromptParts, needs: PromptNeeds) -> Iterator[Complaint]:
    span = (field.start, field.body)
    if field.written != f"{field.name}:":
        yield Complaint("fields", f"write {field.name}: exactly so", *span)
    if parts.text[: field.start].rpartition("\n")[2].strip():
        yield Complaint("fields", f"{field.name} begins a line", *span)
    if field.name in (SOUNDSCAPE, MUSIC):
        if not field.text:
            yield Complaint("fields", f"{field.name} is empty: write {NOTHING} where there is none", *span)
        elif _NOT_THERE.match(field.text) and field.text != NOTHING:
            yield Complaint("fields", f"where there is none, {field.name} is {NOTHING}", field.body, field.end)
    elif not field.text or _NOT_THERE.match(field.text):
        yield Complaint("fields", f"{field.name} is empty", *span)
    if field.name == needs.description == "detailed_description":
        opening = parts.text[field.body :].lstrip()
        if opening.startswith("[Shot"):
            yield Complaint("fields", "a sentence on the style comes before [Shot 1]", *span)


def _task_types(summary: Field, needs: PromptNeeds) -> Iterator[Complaint]:
    span = (summary.start, summary.end)
    found = re.match(r"\[([^\]\n]+)\]", summary.text)
    if found is None:
        yield Complaint("fields", f"the summary begins with task types in brackets: {', '.join(TASK_TYPES)}", *span)
        return
    types = [part.strip() for part in found[1].split("+")]
    if wrong := [name for name in types if name not in TASK_TYPES]:
        allowed = f"{', '.join(TASK_TYPES)}, joined by +"
        yield Complaint("fields", f"{', '.join(wrong)}: no task type; there are {allowed}", *span)
    if len(set(types)) < len(types):
        yield Complaint("fields", "a task type is there twice", *span)
    for name in types:
        if (name.startswith("video ") and not needs.videos) or (name.startswith("audio ") and not needs.most_audios):
            kind = name.split()[0]
            yield Complaint("references", f"{name}, but no {kind} is given", *span)
