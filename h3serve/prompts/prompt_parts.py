"""A prompt taken apart: what is before the first field, the fields, and the shots of a description."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from h3serve.prompts.official_form import ALL_FIELDS

# A name with an underscore heads a field wherever it is; any spelling of one does at the start of a line.
_NAMED = re.compile(rf"\b(?P<name>{'|'.join(name for name in ALL_FIELDS if '_' in name)})[ \t]*[:：]")
# (Here and below repetitions are bounded: a text made to be slow is read as fast as any.)
_LOOSE = re.compile(
    r"^(?:[ \t]{0,9}[#*>_-]{1,6})?[ \t]{0,9}(?P<name>[A-Za-z][A-Za-z_ -]{4,45}?)[*_ ]{0,4}(?:[:：][*_]{0,4}|$)",
    re.MULTILINE,
)
_ALIKE = 0.85
_SHOT = re.compile(
    r"\[[Ss]hot ?(?P<number>\d{1,4})\](?:[ \t,:]{0,4}[Aa]t (?P<clock>[\d:.]{0,15}\d)(?P<after>[ \t]{0,3}[a-z]{0,8},?))?"
)
_SENTENCE_END = re.compile(r"(?:[.!?…][\"”'’)]{0,3}|</d>|<scenetrans>|<cutoff>|\n)[ \t]{0,9}$")
_BEFORE = 32  # characters in which the end of the sentence before a shot is looked for


@dataclass(frozen=True)
class Field:
    """A field: `name` as the form has it, `written` as the prompt has it; its text is from `body` to `end`."""

    name: str
    written: str
    start: int
    body: int
    end: int
    text: str


@dataclass(frozen=True)
class Shot:
    """A shot's head at `start` to `end`, its time as written, and what follows the time."""

    number: int
    clock: str | None
    after: str
    start: int
    end: int


@dataclass(frozen=True)
class PromptParts:
    """A prompt and its fields in the order in which they are written."""

    text: str
    fields: tuple[Field, ...]

    @property
    def preamble(self) -> str:
        """What is before the first field."""
        return self.text[: self.fields[0].start] if self.fields else self.text

    def field(self, name: str) -> Field | None:
        """The first field of this name."""
        return next((field for field in self.fields if field.name == name), None)

    def shots(self, name: str) -> list[Shot]:
        """The heads of the shots in the field `name`: those inside a sentence only mention a shot."""
        field = self.field(name)
        if field is None:
            return []
        heads = []
        for found in _SHOT.finditer(self.text, field.body, field.end):
            before = self.text[max(field.body, found.start() - _BEFORE) : found.start()]
            if found["clock"] or not before.strip() or _SENTENCE_END.search(before):
                clock, after = found["clock"], found["after"] or ""
                heads.append(Shot(int(found["number"]), clock, after, found.start(), found.end()))
        return heads

    def mentioned_shots(self) -> list[tuple[int, int, int]]:
        """(number, start, end) of every `[Shot N]`, heads included."""
        return [(int(found["number"]), found.start(), found.end()) for found in _SHOT.finditer(self.text)]


def take_apart(text: str) -> PromptParts:
    """The parts of a prompt, whatever it looks like."""
    heads: dict[int, tuple[str, str, int]] = {}  # by the end of the name: one head may be found twice
    for found in [*_LOOSE.finditer(text), *_NAMED.finditer(text)]:
        if (name := _field_name(found["name"])) is not None:
            start = found.start() + len(found[0]) - len(found[0].lstrip())
            heads[found.end("name")] = (name, text[start : found.end()].rstrip(), start)
    ends = sorted(heads)
    fields = []
    for index, at in enumerate(ends):
        name, written, start = heads[at]
        body = start + len(written)
        end = heads[ends[index + 1]][2] if index + 1 < len(ends) else len(text)
        fields.append(Field(name, written, start, body, end, text[body:end].strip()))
    return PromptParts(text, tuple(fields))


def _field_name(written: str) -> str | None:
    """The field that is meant by a heading; None where it is none."""
    plain = re.sub(r"[ -]+", "_", written.strip().lower()).strip("_")
    if plain in ALL_FIELDS:
        return plain
    alike = difflib.get_close_matches(plain, [name for name in ALL_FIELDS if "_" in name], 1, _ALIKE)
    return alike[0] if alike else None
