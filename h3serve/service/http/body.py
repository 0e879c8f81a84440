"""Reading a body, JSON or multipart, while its bytes are counted: a cap stops it before it is stored.

It is taken apart in blocks, in a few threads: the event loop only hands them on.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from anyio import CapacityLimiter, to_thread
from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

from h3serve.core.errors import RequestError
from h3serve.service.http.json_body import INLINE, JsonBody
from h3serve.service.http.peer_fields import MAY_NAME_MEDIA
from h3serve.service.jobs.data_folder import check_free
from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job import Json
from h3serve.service.service_settings import BodyLimits

_BLOCK = 2**17  # bytes that are handed on together
_SMALL = 2**14  # a JSON body up to here costs the event loop less than a thread would
_MOST_HEADER = 2**13  # of a part


@dataclass(frozen=True)
class Upload:
    """A file part: `path` is where it lies, `part` and `name` what the caller calls it.

    Of media that came inside JSON the file holds the `data:` or `base64:` text.
    """

    path: Path
    part: str
    name: str
    is_inline: bool = False


@dataclass
class Body:
    """Fields as sent, and the file parts in their order."""

    fields: Json = field(default_factory=dict)
    files: list[Upload] = field(default_factory=list)
    is_form: bool = False
    is_small: bool = True

    @property
    def is_plain(self) -> bool:
        """Nothing came with it and nothing is named in it that must be fetched, probed or kept."""
        return not (self.is_form or self.files or any(self.fields.get(name) for name in MAY_NAME_MEDIA))


async def read_body(request: Request, folder: Path, limits: BodyLimits, threads: CapacityLimiter) -> Body:
    """The body of `request`; files are written into `folder`, which is made when needed.

    Raises RequestError, Refusal (415) or HTTPException (413); the caller removes the folder then.
    """
    kind, options = parse_options_header(request.headers.get("content-type", "").encode("latin-1"))
    if kind == b"multipart/form-data":
        boundary = options.get(b"boundary")
        if not boundary:
            raise RequestError("request", "multipart without a boundary", "send a boundary in Content-Type")
        lift_cap(request.scope, limits.body)
        return await _read_form(request.stream(), boundary, folder, limits, threads)
    if kind not in (b"application/json", b""):
        raise Refusal(415, "send application/json or multipart/form-data", code="unsupported_media_type")
    lift_cap(request.scope, limits.json)
    return await _read_json(request.stream(), folder, limits, threads)


async def _read_json(chunks: AsyncIterator[bytes], folder: Path, limits: BodyLimits, threads: CapacityLimiter) -> Body:
    def new_file(number: int) -> Path:
        if number >= limits.files:
            raise RequestError("request", "too many media", f"at most {limits.files}")
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{INLINE}{number:02}"

    read = JsonBody(new_file)
    try:
        size = await _feed(chunks, read.feed, folder, limits, threads, is_cheap=True)
        if size <= _SMALL:
            return Body(read.finish())
        fields = await to_thread.run_sync(read.finish, limiter=threads)
    finally:
        read.close()
    files = [
        Upload(path, f"{INLINE}{number}", f"data: uri of {length} characters", is_inline=True)
        for number, (path, length) in enumerate(read.media)
    ]
    return Body(fields, files, is_small=False)


async def _read_form(
    chunks: AsyncIterator[bytes], boundary: bytes, folder: Path, limits: BodyLimits, threads: CapacityLimiter
) -> Body:
    form = _Form(folder, limits)
    try:
        parser = MultipartParser(boundary, form.callbacks())  # type: ignore[arg-type]
        await _feed(chunks, parser.write, folder, limits, threads)
        parser.finalize()
    except FormParserError as error:
        raise RequestError("request", "this body", f"it is not whole multipart/form-data ({error})") from None
    finally:
        form.close()
    if not form.is_whole:
        raise RequestError("request", "this body", "the multipart body ends too early")
    return form.body


async def _feed(
    chunks: AsyncIterator[bytes],
    take: Callable[[bytes], object],
    folder: Path,
    limits: BodyLimits,
    threads: CapacityLimiter,
    *,
    is_cheap: bool = False,
) -> int:
    """Give everything to `take`, in a thread unless it is small and cheap; returns how many bytes that were."""

    def hand_on(block: bytes) -> None:
        check_free(folder, limits.free)
        take(block)

    block, size = bytearray(), 0
    async for chunk in chunks:
        block += chunk
        size += len(chunk)
        if len(block) >= _BLOCK:
            await to_thread.run_sync(hand_on, bytes(block), limiter=threads)
            block.clear()
    if is_cheap and size <= _SMALL:
        take(bytes(block))
    elif block:
        await to_thread.run_sync(hand_on, bytes(block), limiter=threads)
    return size


class _Form:
    """Collects parts as the parser meets them."""

    def __init__(self, folder: Path, limits: BodyLimits) -> None:
        self.folder, self.limits = folder, limits
        self.body, self.is_whole = Body(is_form=True), False
        self._header = (bytearray(), bytearray())
        self._headers: dict[str, bytes] = {}
        self._name, self._size, self._parts = "", 0, 0
        self._file: BinaryIO | None = None
        self._text = bytearray()

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self._headers.clear,
            "on_header_field": lambda data, i, j: self._add_header(0, data[i:j]),
            "on_header_value": lambda data, i, j: self._add_header(1, data[i:j]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._begin,
            "on_part_data": lambda data, i, j: self._add(data[i:j]),
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def _is_list(self) -> bool:
        """Clients send the items of a list as parts of one name."""
        return "[]" in self._name

    def _add_header(self, index: int, data: bytes) -> None:
        self._header[index].extend(data)
        if len(self._header[index]) > _MOST_HEADER:
            raise too_large("a part's header", _MOST_HEADER)

    def _end_header(self) -> None:
        name, value = self._header
        self._headers[name.decode("latin-1").lower()] = bytes(value)
        name.clear()
        value.clear()

    def _begin(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if not self._name:
            raise RequestError("request", "a part without a name", "every part needs a name")
        self._size, self._file = 0, None
        self._text.clear()
        if b"filename" in options and self._name != "request":  # curl names the file of `-F request=@request.json`
            self._begin_file(options[b"filename"].decode("utf-8", "replace"))
        elif self._name in self.body.fields and not self._is_list:
            raise RequestError(self._name, "a second part", "the field is given twice")
        elif self._parts >= self.limits.fields:
            raise RequestError("request", "too many fields", f"at most {self.limits.fields}")
        else:
            self._parts += 1

    def _begin_file(self, given: str) -> None:
        if len(self.body.files) >= self.limits.files:
            raise RequestError("request", "too many files", f"at most {self.limits.files}")
        self.folder.mkdir(parents=True, exist_ok=True)
        name = given.replace("\\", "/").rsplit("/", 1)[-1][:200]
        path = self.folder / f"upload-{len(self.body.files):02}{safe_suffix(name)}"
        self._file = path.open("wb")
        self.body.files.append(Upload(path, self._name, name))

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        limit = self.limits.field if self._file is None else self.limits.file
        if self._size > limit:
            raise too_large(f"part {self._name!r}", limit)
        if self._file is None:
            self._text += data
        else:
            self._file.write(data)

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
            return
        try:
            text = self._text.decode()
        except UnicodeDecodeError:
            raise RequestError(self._name, "these bytes", "text in UTF-8") from None
        if self._is_list:
            self.body.fields.setdefault(self._name, []).append(text)
        else:
            self.body.fields[self._name] = text

    def _finish(self) -> None:
        self.is_whole = True


def safe_suffix(name: str) -> str:
    """The ending of a name when it is short and plain, for people who look at the folder."""
    match = re.search(r"\.[A-Za-z0-9]{1,5}$", name)
    return match.group().lower() if match else ""


_CAP = 2**16  # bytes of a body, until its route allows more
_KEY = "h3serve.body_cap"


class BodyCap:
    """Stands in for `receive` and counts; raises HTTPException 413 once the bound is passed, or announced to be."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        scope[_KEY] = self
        declared = dict(scope["headers"]).get(b"content-length", b"")
        self.limit, self._receive = _CAP, receive
        self._declared = int(declared[:20]) if declared.isdigit() else 0
        self._seen = 0

    async def __call__(self) -> Message:
        if self._declared > self.limit:
            raise too_large("the body", self.limit)
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if self._seen > self.limit:
            raise too_large("the body", self.limit)
        return message


def lift_cap(scope: Scope, limit: int) -> None:
    """Let the body of this request have up to `limit` bytes."""
    scope[_KEY].limit = limit


def too_large(what: str, limit: int) -> HTTPException:
    """413 with the bound."""
    return HTTPException(413, f"{what} is larger than {limit} bytes")
