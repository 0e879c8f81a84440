"""The line that ties keyframes to moments of the video: written, and compared with what a prompt has."""

from __future__ import annotations

import re
from collections.abc import Iterator

from h3serve.prompts.complaint import Complaint
from h3serve.prompts.official_form import PromptNeeds
from h3serve.prompts.prompt_parts import PromptParts

_FIRST_ONLY = (
    "For the target video, at 0.00 seconds into the target video, <Picture 1> (from [Shot 1]) is fully referenced."
)
_OPENING = "How the reference pictures align with the target video — "
_CLAUSE = re.compile(
    r"<?Picture (\d+)>? \(from \[?Shot (\d+)\]?\) aligns with the (\d+(?:\.\d*)?)-second mark of the target video"
)
_LOOKS_LIKE = re.compile(r"(?i)^\W*(for the target video,|how the (reference )?(pictures|images) align\b)")
_TOLERANCE_S = 0.0101  # of two decimals, whichever way they were rounded


def alignment_line(needs: PromptNeeds, shots: int = 1) -> str | None:
    """The line for these keyframes, the last one in shot number `shots`; None where the form has none."""
    if needs.task != "fl2va":
        return None
    if needs.keyframes == (0,):
        return _FIRST_ONLY
    end = f"aligns with the {needs.seconds or 0:.2f}-second mark of the target video"
    if needs.keyframes == (-1,):
        return f"{_OPENING}<Picture 1> (from [Shot {shots}]) {end}."
    first = "Picture 1 (from Shot 1) aligns with the 0.00-second mark of the target video"
    return f"{_OPENING}{first}; Picture 2 (from Shot {shots}) {end}."


def check_alignment(parts: PromptParts, needs: PromptNeeds) -> Iterator[Complaint]:
    """Complaints about the line: missing, not wanted, not first, of other keyframes, or at another time or shot."""
    wanted = alignment_line(needs, max([shot.number for shot in parts.shots(needs.description)], default=1))
    lines = list(re.finditer(r"[^\n]+", parts.preamble))
    found = [line for line in lines if _LOOKS_LIKE.match(line[0])]
    if wanted is None:
        for line in found:
            said = "only first and last images have an alignment line: remove it"
            yield Complaint("alignment", said, line.start(), line.end())
        return
    if not found:
        yield Complaint("alignment", f"the first line has to be: {wanted}", 0, 0)
        return
    line, text = found[0], found[0][0].strip()
    for other in found[1:]:
        yield Complaint("alignment", "there is one alignment line only", other.start(), other.end())
    if line is not lines[0]:
        yield Complaint("alignment", "the alignment line comes first", line.start(), line.end())
    if not re.match(r"[ \t\r]*\n[ \t\r]*\n", parts.text[line.end() :]):
        yield Complaint("alignment", "a blank line follows the alignment line", line.start(), line.end())
    if not _says(text, wanted):
        yield Complaint("alignment", f"for these images and this length it is: {wanted}", line.start(), line.end())


def _says(text: str, wanted: str) -> bool:
    """Whether a line says what `wanted` does: brackets, dashes and the rounding of the time are free."""
    clauses = [_values(clause) for clause in _CLAUSE.finditer(wanted)]
    if not clauses:
        return _plain(text) == _plain(wanted)
    said = [_values(clause) for clause in _CLAUSE.finditer(text)]
    if _plain(_CLAUSE.sub("", text)) != _plain(_CLAUSE.sub("", wanted)) or len(said) != len(clauses):
        return False
    return all(
        mine[:2] == theirs[:2] and abs(mine[2] - theirs[2]) < _TOLERANCE_S
        for mine, theirs in zip(said, clauses, strict=True)
    ) and all(re.search(r"\.\d\d$", clause[3]) for clause in _CLAUSE.finditer(text))


def _values(clause: re.Match[str]) -> tuple[int, int, float]:
    return int(clause[1]), int(clause[2]), float(clause[3])


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"[<>\[\]—–.-]", " ", text)).strip().lower()
