"""Shots: numbered from 1, the first without a time, the others at rising times inside the video."""

from __future__ import annotations

import re
from collections.abc import Iterator

from h3serve.prompts.complaint import Complaint
from h3serve.prompts.official_form import PromptNeeds
from h3serve.prompts.prompt_parts import PromptParts, Shot

_CLOCK = re.compile(r"(\d\d):([0-5]\d)\.(\d{3})")
# What stands for a shot's head in other forms, where a sentence may begin.
_OTHER_HEAD = re.compile(
    r"(?:(?<=[.!?>\n:])|^)[ \t\n]{0,4}(?P<head>\(?\*{0,2}(?:Shot|Scene|Shard) \d{1,4}\)?\*{0,2}[ \t]?(?::|[Aa]t \d|-)"
    r"|\[(?:Scene|Shard|Shot [A-Za-z]+|[\d:.]{1,12}(?: ?s)?(?: ?[-–] ?[\d:.]{1,12}(?: ?s)?)?)\b[^\]\n]{0,12}\])"
)


def check_shots(parts: PromptParts, needs: PromptNeeds) -> Iterator[Complaint]:
    """Complaints about the heads of shots and their times."""
    field = parts.field(needs.description)
    if field is None or not field.text:
        return
    for found in _OTHER_HEAD.finditer(parts.text, field.body, field.end):
        said = "a shot begins with its number in brackets and its time: [Shot 2] At 00:03.500,"
        yield Complaint("cuts", said, found.start("head"), found.end("head"))
    shots = parts.shots(needs.description)
    if not shots or shots[0].number != 1:
        yield Complaint("cuts", "the description begins with [Shot 1]", field.start, field.body)
    elif needs.task != "ref2va" and parts.text[field.body : shots[0].start].strip():
        yield Complaint("cuts", "nothing comes before [Shot 1]", field.body, shots[0].start)
    before = 0.0
    for index, shot in enumerate(shots):
        span = (shot.start, shot.end)
        if index and shot.number != shots[index - 1].number + 1:
            yield Complaint("cuts", f"[Shot {shots[index - 1].number}] is followed by number {shot.number}", *span)
        if shot.number == 1:
            if shot.clock is not None:
                yield Complaint("cuts", "[Shot 1] has no time: it begins the video", *span)
        else:
            complaint, before = _time(shot, before, needs.seconds)
            if complaint is not None:
                yield complaint
    last, heads = max((shot.number for shot in shots), default=0), {shot.start for shot in shots}
    for number, start, end in parts.mentioned_shots():
        if shots and start not in heads and not 1 <= number <= last:
            yield Complaint("cuts", f"there is no [Shot {number}]", start, end)


def _time(shot: Shot, before: float, seconds: float | None) -> tuple[Complaint | None, float]:
    """What is wrong with the time of a cut, and the time that the next one has to be after."""
    found = _CLOCK.fullmatch(shot.clock or "")

    def wrong(text: str) -> Complaint:
        return Complaint("cuts", text, shot.start, shot.end)

    if shot.clock is None:
        return wrong(f"[Shot {shot.number}] needs the time of its cut: [Shot {shot.number}] At 00:03.500,"), before
    if found is None or shot.after != ",":
        return wrong(f"a time is MM:SS.mmm and a comma, such as At 00:03.500, and not {shot.clock}{shot.after}"), before
    time = int(found[1]) * 60 + int(found[2]) + int(found[3]) / 1000
    if time <= before:
        return wrong(f"cuts come one after the other: {shot.clock} is not after {before:.3f} s"), before
    if seconds is not None and time >= seconds:
        return wrong(f"the video ends at {seconds:.3f} s, before the cut at {shot.clock}"), time
    return None, time
