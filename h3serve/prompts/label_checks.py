"""Labels: of media that are given, defined once, kept track of with a marker that suits their kind."""

from __future__ import annotations

import re
from collections.abc import Iterator

from h3serve.prompts.complaint import Complaint
from h3serve.prompts.official_form import DEFINITIONS, LABEL, MARKERS, RETENTION, PromptNeeds
from h3serve.prompts.prompt_parts import Field, PromptParts

_KIND = r"(?:subject|picture|image|photo|video|clip|audio|sound)"
_ODD_LABEL = re.compile(
    rf"<\s*{_KIND}s?\s*[#_-]?\s*(?:\d+|[NX])\s*>|[\[{{(]\s*{_KIND}\s*#?\d+\s*[\]}})]|@{_KIND}\s?\d+", re.IGNORECASE
)
_BARE = re.compile(r"(?<![<\w])(Picture|Video|Audio|Subject) (\d+)(?![\w>])")
_ENTRY = re.compile(r"<(\w+) (\d+)>(?: \([^\n]*?\))?:? *([a-z_]*)(?: *[-–—] *)?(.*)")


def check_labels(parts: PromptParts, needs: PromptNeeds) -> Iterator[Complaint]:
    """Complaints about labels and what they stand for."""
    for found in _ODD_LABEL.finditer(parts.text):
        if not LABEL.fullmatch(found[0]):
            said = "a label is <Picture 1>, <Video 1>, <Audio 1> or <Subject 1>"
            yield Complaint("references", said, found.start(), found.end())
    for found in [*LABEL.finditer(parts.text), *_BARE.finditer(parts.text)]:
        yield from _one_label(found, needs)
    if needs.task == "ref2va":
        yield from _unused(parts, needs)
        yield from _tracked(parts)


def _one_label(found: re.Match[str], needs: PromptNeeds) -> Iterator[Complaint]:
    kind, number, span = found[1], int(found[2]), (found.start(), found.end())
    most = needs.given(kind)
    if kind == "Subject" and needs.task != "ref2va":
        yield Complaint("references", f"{found[0]}: only references define subjects", *span)
    elif most is not None and number > most:
        there = f"{most} {'is' if most == 1 else 'are'} given" if most else "none is given"
        yield Complaint("references", f"{found[0]} is not there: of this kind {there}", *span)
    elif not found[0].startswith("<") and needs.task == "ref2va":
        yield Complaint("references", f"write <{found[0]}>", *span)


def _unused(parts: PromptParts, needs: PromptNeeds) -> Iterator[Complaint]:
    """Given media that the prompt does not name: which soundtracks have a label is not known of every video."""
    named = {(found[1], int(found[2])) for found in LABEL.finditer(parts.text)}
    for kind, count in (("Picture", needs.pictures), ("Video", needs.videos)):
        for number in range(1, count + 1):
            if (kind, number) not in named:
                yield Complaint("references", f"<{kind} {number}> is given but never named", 0, 0)
    heard = sum(kind == "Audio" and number <= needs.most_audios for kind, number in named)
    if heard < needs.audios:
        yield Complaint("references", f"{needs.audios} audio labels are given, {heard} are named", 0, 0)


def _tracked(parts: PromptParts) -> Iterator[Complaint]:
    definitions, retention = parts.field(DEFINITIONS), parts.field(RETENTION)
    if definitions is None:
        return
    defined: list[tuple[str, str]] = []
    yield from _definitions(parts, definitions, defined)
    known = set(LABEL.findall(definitions.text))
    for found in LABEL.finditer(parts.text):
        if found.groups() not in known and not definitions.start <= found.start() < definitions.end:
            said = f"{found[0]} is not in {DEFINITIONS}"
            yield Complaint("references", said, found.start(), found.end())
    if retention is not None and retention.text:
        yield from _retention(parts, retention, defined)


def _definitions(parts: PromptParts, field: Field, defined: list[tuple[str, str]]) -> Iterator[Complaint]:
    """One label a line, each once, subjects counted from 1; fills `defined` with them."""
    for line in re.finditer(r"[^\n]+", parts.text[field.body : field.end]):
        span = (field.body + line.start(), field.body + line.end())
        if not line[0].strip():
            continue
        found = LABEL.match(line[0].strip())
        if found is None:
            yield Complaint("references", "a line here begins with the label that it defines", *span)
        elif (found[1], found[2]) in defined:
            yield Complaint("references", f"{found[0]} is defined twice", *span)
        else:
            defined.append((found[1], found[2]))
            count = sum(kind == "Subject" for kind, _ in defined)
            if found[1] == "Subject" and int(found[2]) != count:
                yield Complaint("references", f"subjects count from 1: <Subject {count}> comes next", *span)


def _retention(parts: PromptParts, field: Field, defined: list[tuple[str, str]]) -> Iterator[Complaint]:
    """A line for every label that is defined, with a marker of its kind."""
    seen: list[tuple[str, str]] = []
    for line in re.finditer(r"[^\n]+", parts.text[field.body : field.end]):
        span, found = (field.body + line.start(), field.body + line.end()), _ENTRY.fullmatch(line[0].strip())
        if not line[0].strip():
            continue
        if found is None or found[1] not in MARKERS:
            yield Complaint("references", "a line here is <Label N>: marker - what is kept", *span)
            continue
        label = (found[1], found[2])
        if found[3] not in MARKERS[found[1]]:
            allowed = ", ".join(MARKERS[found[1]])
            yield Complaint("references", f"the marker of <{found[1]} {found[2]}> is one of {allowed}", *span)
        if label in seen:
            yield Complaint("references", f"<{found[1]} {found[2]}> has two lines", *span)
        elif label not in defined:
            yield Complaint("references", f"<{found[1]} {found[2]}> has no line in {DEFINITIONS}", *span)
        seen.append(label)
    for kind, number in defined:
        if (kind, number) not in seen:
            yield Complaint("references", f"{RETENTION} has no line for <{kind} {number}>", field.start, field.body)
