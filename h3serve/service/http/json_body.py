"""A JSON object out of bytes that arrive in pieces, at a bounded price.

Media inside it (`data:` and `base64:` texts) go into files as they come; what is left is small, and has as many lists,
objects and texts as a request can honestly have. So neither memory nor time grows with what a client sends, and no
call into the parser keeps the interpreter from the other threads for more than milliseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from h3serve.core.errors import RequestError
from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job import Json

MOST_BYTES = 2**20  # of a text without its media: the longest prompt, every character escaped, has 0.8 MB
MOST_OPENINGS = 256  # lists and objects: 15 conditions are 16
MOST_TEXTS = 2048
MOST_ITEMS = 4096
INLINE = "inline-"
_KEPT = 2**16  # a longer text that is a medium goes into a file
_MEDIUM = re.compile(rb"(data|base64):", re.IGNORECASE)
# The inside of a text: anything up to a quote, with whole escapes; an escape that is cut off is not taken.
_INSIDE = re.compile(rb'[^"\\]*(?:\\(?:u[0-9A-Fa-f]{4}|[^u])[^"\\]*)*')
_LONGEST_ESCAPE = 6


class JsonBody:
    """Takes bytes with `feed`; `finish` gives the object. `new_file` makes files for media; without it they stay.

    `media` holds, in order, what was put into files; the object has `upload:inline-N` in its place.
    """

    def __init__(self, new_file: Callable[[int], Path] | None = None) -> None:
        self.media: list[tuple[Path, int]] = []  # and how many characters it has
        self._new_file = new_file
        self._text, self._rest = bytearray(), b""
        self._openings = self._texts = self._items = 0
        self._is_inside, self._start = False, 0
        self._file: BinaryIO | None = None

    def feed(self, data: bytes) -> None:
        """Raises RequestError or Refusal 413 as soon as a bound is passed."""
        data, self._rest, at = self._rest + data, b"", 0
        while at < len(data):
            at = self._inside(data, at) if self._is_inside else self._between(data, at)

    def finish(self) -> Json:
        """The object; RequestError for anything else, NaN and repeated names included."""
        self.close()
        try:
            value = json.loads(self._text + self._rest, parse_constant=_refuse_constant, object_pairs_hook=_unique)
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        except RequestError:
            raise
        except (ValueError, RecursionError) as error:
            raise _no_object(type(error).__name__) from None
        if not isinstance(value, dict):
            raise RequestError("request", type(value).__name__, "send one JSON object")
        return value

    def close(self) -> None:
        """End the file that is being written."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _between(self, data: bytes, at: int) -> int:
        """What is outside of texts, up to the next one."""
        quote = data.find(b'"', at)
        end = len(data) if quote < 0 else quote + 1
        part = data[at:end]
        self._openings += part.count(b"[") + part.count(b"{")
        self._items += part.count(b",")
        self._texts += quote >= 0
        if self._openings > MOST_OPENINGS or self._items > MOST_ITEMS or self._texts > MOST_TEXTS:
            raise _no_object(f"at most {MOST_OPENINGS} lists and objects, {MOST_ITEMS} items and {MOST_TEXTS} texts")
        self._keep(part)
        self._is_inside, self._start = quote >= 0, len(self._text)
        return end

    def _inside(self, data: bytes, at: int) -> int:
        """What is inside of a text, up to its end."""
        found = _INSIDE.match(data, at)
        end = at if found is None else found.end()
        if self._file is None:
            self._keep(data[at:end])
        else:
            self._write(data[at:end])
        if end == len(data):
            return end
        if data[end] == ord('"'):
            self.close()
            self._is_inside = False
            self._keep(b'"')
            return end + 1
        if len(data) - end >= _LONGEST_ESCAPE:
            raise _no_object("an escape that is none")
        self._rest = data[end:]
        return len(data)

    def _keep(self, part: bytes) -> None:
        self._text += part
        if self._is_inside and len(self._text) - self._start > _KEPT and self._new_file is not None:
            self._move_out(self._new_file)
        if len(self._text) > MOST_BYTES:
            hint = "media are sent as data: texts or as file parts"
            raise Refusal(413, f"the request without its media is larger than {MOST_BYTES} bytes; {hint}")

    def _move_out(self, new_file: Callable[[int], Path]) -> None:
        """Go on in a file if this text is a medium."""
        if _MEDIUM.match(self._text, self._start) is None:
            return
        path, begun = new_file(len(self.media)), bytes(self._text[self._start :])
        self._file = path.open("wb")
        self.media.append((path, 0))
        self._text[self._start :] = f"upload:{INLINE}{len(self.media) - 1}".encode()
        self._write(begun)

    def _write(self, part: bytes) -> None:
        assert self._file is not None
        try:
            text: str = json.loads(b'"%b"' % part)
            self._file.write(text.encode())
        except ValueError as error:
            raise _no_object(type(error).__name__) from None
        path, length = self.media[-1]
        self.media[-1] = path, length + len(text)


def parse_json(data: bytes | str) -> Json:
    """A JSON object that is at hand; raises RequestError or Refusal as `JsonBody` does."""
    body = JsonBody()
    body.feed(data.encode() if isinstance(data, str) else data)
    return body.finish()


def _no_object(why: str) -> RequestError:
    return RequestError("request", "this body", f"send one JSON object ({why})")


def _refuse_constant(name: str) -> Any:
    raise RequestError("request", name, "JSON has no such number")


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    found: Json = {}
    for name, value in pairs:
        if name in found:
            raise RequestError(name, value, "the field is given twice")
        found[name] = value
    return found
