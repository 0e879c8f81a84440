"""A file while it is downloaded: it goes on where it broke off, and has its name only when it is whole."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType

import httpx

from h3serve.core.errors import OutputError


class PartFile:
    """`with PartFile(path) as part`: bytes come by `take`, in as many replies as it needs."""

    def __init__(self, path: Path) -> None:
        self.path, self._part = path, path.with_name(f".{path.name}.part")
        self._tag: str | None = None

    def __enter__(self) -> PartFile:
        try:
            self._file = self._part.open("wb")
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {error.strerror}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is not None:
            self._part.unlink(missing_ok=True)
            return
        self._check()
        self._part.replace(self.path)

    @property
    def headers(self) -> dict[str, str]:
        """What asks for the rest, of the same file only."""
        held = self._file.tell()
        return {"Range": f"bytes={held}-", "If-Range": self._tag} if held and self._tag else {}

    def begin(self, reply: httpx.Response) -> None:
        """Looks at the head of a reply: one of the whole file starts anew."""
        if reply.status_code != 206:
            self._file.seek(0)
            self._file.truncate()
        self._tag = reply.headers.get("etag")

    def take(self, data: bytes) -> None:
        """The next bytes. OutputError for a full disk."""
        try:
            self._file.write(data)
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {error.strerror}") from None

    def _check(self) -> None:
        """The server's tag is the hash of the content."""
        with self._part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if self._tag is not None and self._tag.strip('"') != found:
            self._part.unlink()
            raise OutputError(f"{self.path}: other bytes came than the server has; download it again")
