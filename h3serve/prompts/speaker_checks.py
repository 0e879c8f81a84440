"""Speech: who says it, in which language, and its marks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from h3serve.prompts.complaint import Complaint
from h3serve.prompts.official_form import RETENTION, SPEAKER, PromptNeeds
from h3serve.prompts.prompt_parts import Field, PromptParts

_ODD_SPEAKER = re.compile(
    r"\((?:s\d+|[Ss]peaker ?\d+|S \d+|S0\d*|S\d+(?: ?(?:[&/+;]|and) ?S\d+)+|S[NX?])\)|[\[<{]S\d+[\]>}]"
)
_LANGUAGE = re.compile(r"\s*\[([A-Z][a-z]+(?:[ -][A-Z]?[a-z]+)*)\]\s*(.*)", re.DOTALL)
_QUOTED = re.compile(r"(\(S[\d, S]+\)[^.!?\n<>]{0,160}[,:] ?)([\"“][^\"”\n]{2,}[\"”])")
_MARK = re.compile(r"</?d>")
_NEXT = re.compile(r"\[Shot \d+\]|<scenetrans>")
_OWNER = re.compile(r"<Subject (\d+)> (\(S\d+\))")


def check_speakers(parts: PromptParts, needs: PromptNeeds) -> Iterator[Complaint]:
    """Complaints about ids of speakers and about `<d>`."""
    for found in _ODD_SPEAKER.finditer(parts.text):
        yield Complaint("speakers", "a speaker is (S1), two are (S1,S2)", found.start(), found.end())
    field = parts.field(needs.description)
    for other in parts.fields:
        if other is not field:
            yield from _elsewhere(other, field)
    if field is None:
        return
    marks = list(_MARK.finditer(parts.text, field.body, field.end))
    whole = len(marks) % 2 == 0 and all(mark[0] == ("</d>" if i % 2 else "<d>") for i, mark in enumerate(marks))
    if not whole:
        odd = next((m for i, m in enumerate(marks) if m[0] != ("</d>" if i % 2 else "<d>")), marks[-1])
        yield Complaint("speakers", "every <d> ends with </d> before the next begins", odd.start(), odd.end())
    else:
        yield from _speech(parts.text, field, marks)
    yield from _numbers(parts.text, field)
    for found in _QUOTED.finditer(parts.text, field.body, field.end):
        said = "spoken words are written <d>[Language] words</d>; quotes are for what is read"
        yield Complaint("speakers", said, found.start(2), found.end(2))


def _elsewhere(other: Field, field: Field | None) -> Iterator[Complaint]:
    """Speech outside of the description, and speakers who say nothing in it."""
    span = (other.start, other.end)
    if "<d>" in other.text:
        yield Complaint("speakers", f"speech belongs in the description, not in {other.name}", *span)
    for found in SPEAKER.finditer(other.text):
        if other.name == RETENTION:
            yield Complaint("speakers", f"{RETENTION} has no speakers: remove {found[0]}", *span)
        elif field is None or not set(_ids(found[0])) <= {n for s in SPEAKER.findall(field.text) for n in _ids(s)}:
            yield Complaint("speakers", f"{found[0]} does not speak in the description", *span)


def _speech(text: str, field: Field, marks: list[re.Match[str]]) -> Iterator[Complaint]:
    """Each `<d>`: a language, words, and someone whose words they are."""
    after = field.body
    for opening, closing in zip(marks[::2], marks[1::2], strict=True):
        inside, span = text[opening.end() : closing.start()], (opening.start(), closing.end())
        found = _LANGUAGE.fullmatch(inside.replace("<scenetrans>", "").replace("<cutoff>", ""))
        if found is None:
            yield Complaint("speakers", "<d> begins with the language, in full and in brackets: <d>[English] …", *span)
        elif not found[2].strip():
            yield Complaint("speakers", "<d> has no words", *span)
        lead = text[after : opening.start()]
        goes_on = after > field.body and not re.search(r"[.!?]\s", lead) and not _NEXT.search(lead)
        if not (SPEAKER.search(lead) or re.search(r"<Audio \d+>", lead) or goes_on):
            yield Complaint("speakers", "who says it is missing: an id such as (S1) before <d>", *span)
        after = closing.end()
    yield from _continued(text, field, marks)


def _continued(text: str, field: Field, marks: list[re.Match[str]]) -> Iterator[Complaint]:
    """Speech over a cut has `<scenetrans>` on both sides; `<cutoff>` is the end of all speech."""
    joints = list(re.finditer("<scenetrans>", text[field.body : field.end]))
    for first, second in zip(joints[::2], [*joints[1::2], None], strict=False):
        start = field.body + first.start()
        if second is None or not re.search(r"\[Shot \d+\]", text[start : field.body + second.start()]):
            said = "<scenetrans> is on both sides of a cut that goes through a sentence"
            yield Complaint("speakers", said, start, start + len("<scenetrans>"))
    for end in re.finditer("<cutoff>", text[field.body : field.end]):
        start = field.body + end.start()
        if any(mark[0] == "<d>" and mark.start() > start for mark in marks):
            yield Complaint("speakers", "<cutoff> is where the video ends: no speech follows", start, start + 8)


def _numbers(text: str, field: Field) -> Iterator[Complaint]:
    """Ids count from S1 in the order of first voices, and stay with their subject."""
    known, owners = 0, dict[str, str]()
    for found in SPEAKER.finditer(text, field.body, field.end):
        ids = _ids(found[0])
        if ids != sorted(set(ids)):
            yield Complaint("speakers", f"{found[0]}: each once, in rising order", found.start(), found.end())
        for number in ids:
            if number > known + 1:
                said = f"speakers count from (S1) in the order in which they are heard: (S{known + 1}) comes next"
                yield Complaint("speakers", said, found.start(), found.end())
            known = max(known, number)
    for found in _OWNER.finditer(text, field.body, field.end):
        subject, speaker = found[1], found[2]
        if owners.setdefault(speaker, subject) != subject:
            said = f"{speaker} is <Subject {owners[speaker]}>: everybody has an id of their own"
            yield Complaint("speakers", said, found.start(), found.end())
        elif [s for s, owner in owners.items() if owner == subject] != [speaker]:
            yield Complaint("speakers", f"<Subject {subject}> keeps one id", found.start(), found.end())


def _ids(speaker: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", speaker)]
