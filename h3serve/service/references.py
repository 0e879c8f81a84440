"""Where the file of a condition may come from; each is copied so that the job keeps its own.

`upload:NAME` or NAME     a file part of the same request, by part name or file name
`data:...;base64,...`     the bytes themselves
`job:ID/NAME`             an input of an earlier job of the same caller
a path or `file://` path  below one of the folders the server allows
`http://`, `https://`     fetched, unless the server forbids it
"""

from __future__ import annotations

import base64
import binascii
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from h3serve.core.errors import MediaError
from h3serve.service.body import Upload, safe_suffix
from h3serve.service.openai_fields import UPLOAD

_DATA = re.compile(r"data:[\w.+/-]*(?:;[\w.=+-]+)*;base64,", re.ASCII)
_JOB = re.compile(r"job:(video_[0-9a-f]{32})/([0-9]{2}[.a-z0-9]{0,6})")
_SCHEMES = "an uploaded file, a data: URI, an http(s) URL or an input of an earlier job"


@dataclass(frozen=True)
class Sources:
    """What one request may draw from. `inputs_of` gives the input folder of a job the caller owns.

    `fetch` stores a URL at a path within `max_bytes`; None forbids URLs.
    """

    uploads: Sequence[Upload]
    folders: Sequence[Path]
    inputs_of: Callable[[str], Path | None]
    fetch: Callable[[str, Path, str], None] | None
    max_bytes: int
    used: set[Path] = field(default_factory=set)  # the uploads that a condition named

    def check_all_used(self) -> None:
        """Nothing is accepted and then ignored: raises MediaError for an upload nobody named."""
        for upload in self.uploads:
            if upload.path not in self.used:
                raise MediaError(upload.part, upload.name, "no condition names this uploaded file in its uri")

    def take(self, uri: str, folder: Path, stem: str, where: str) -> tuple[Path, str]:
        """Put the file behind `uri` into `folder`: (its path, the name to show people).

        Raises MediaError naming `where` and never a path of the server.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if uri.startswith("data:") or uri.startswith("base64://"):
            target = folder / stem
            target.write_bytes(_decoded(uri, where, self.max_bytes))
            return target, "the data URI"
        if uri.startswith(("http://", "https://")):
            return self._fetched(uri, folder / stem, where), uri
        found, name = self._local(uri, where)
        target = folder / (stem + safe_suffix(name))
        shutil.copyfile(found, target)
        return target, name

    def _fetched(self, uri: str, target: Path, where: str) -> Path:
        if self.fetch is None:
            raise MediaError(where, uri, "this server does not fetch URLs; upload the file instead")
        self.fetch(uri, target, where)
        return target

    def _local(self, uri: str, where: str) -> tuple[Path, str]:
        wanted = uri.removeprefix(UPLOAD)
        matches = [u for u in self.uploads if wanted in (u.part, u.name)]
        if len(matches) > 1:
            raise MediaError(where, uri, "more than one uploaded file has this name")
        if matches:
            self.used.add(matches[0].path)
            return matches[0].path, matches[0].name or matches[0].part
        if match := _JOB.fullmatch(uri):
            return self._of_job(*match.groups(), uri=uri, where=where)
        if uri.startswith(UPLOAD):
            raise MediaError(where, uri, "no uploaded file of this request has this name")
        return self._below_folders(uri, where)

    def _of_job(self, job_id: str, name: str, *, uri: str, where: str) -> tuple[Path, str]:
        folder = self.inputs_of(job_id)
        if folder is None or not (folder / name).is_file():
            raise MediaError(where, uri, "that job or its input is not here any more")
        return folder / name, name

    def _below_folders(self, uri: str, where: str) -> tuple[Path, str]:
        parts = urlsplit(uri)
        if parts.scheme not in ("", "file") or parts.netloc:
            raise MediaError(where, uri, f"use {_SCHEMES}")
        text = unquote(parts.path) if parts.scheme else uri
        try:
            path = Path(text).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            path = None
        allowed = path is not None and any(path.is_relative_to(f.resolve()) for f in self.folders)
        if path is None or not allowed or not path.is_file():
            # One answer for a missing and for a forbidden file: nobody can look around.
            raise MediaError(where, uri, f"no such file was uploaded or is allowed here; use {_SCHEMES}")
        return path, path.name


def _decoded(uri: str, where: str, max_bytes: int) -> bytes:
    if match := _DATA.match(uri):
        text = uri[match.end() :]
    elif uri.startswith("base64://"):
        text = uri.removeprefix("base64://")
    else:
        raise MediaError(where, uri[:40], "a data: URI with ;base64")
    if len(text) > max_bytes * 4 // 3 + 4:
        raise MediaError(where, uri[:40], f"at most {max_bytes} bytes")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MediaError(where, uri[:40], "valid base64") from None
