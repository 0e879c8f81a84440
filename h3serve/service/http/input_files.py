"""Where the file of a condition may come from; each is copied so that the job keeps its own.

`upload:NAME` or NAME   a file part of the same request, by part name or file name
`job:ID/NAME`           an input of an earlier job of the same caller
anything else           what `media.fetch` takes: data:, http(s):, and paths in the allowed folders
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from h3serve.core.errors import MediaError
from h3serve.media.sources.data_uri import write_inline
from h3serve.media.sources.media_file import MediaFile, SourcePolicy
from h3serve.media.sources.open_source import open_source
from h3serve.service.http.body import Upload, safe_suffix
from h3serve.service.http.form_fields import UPLOAD
from h3serve.service.jobs.input_names import read_names

_JOB = re.compile(r"job:(video_[0-9a-f]{32})/([0-9]{2}[.a-z0-9]{0,6})")
_PIECE = 2**16  # characters of inline media that are decoded at once


@dataclass(frozen=True)
class Sources:
    """What one request may draw from. `inputs_of` gives the input folder of a job the caller owns."""

    uploads: Sequence[Upload]
    inputs_of: Callable[[str], Path | None]
    policy: SourcePolicy
    fetch_urls: bool = True
    used: set[Path] = field(default_factory=set)  # the uploads that a condition named
    names: dict[str, str] = field(default_factory=dict)  # copied file -> what the caller calls it

    def check_all_used(self) -> None:
        """Nothing is accepted and then ignored: raises MediaError for an upload nobody named."""
        for upload in self.uploads:
            if upload.path not in self.used:
                raise MediaError(upload.part, upload.name, "no condition names this uploaded file in its uri")

    def take(self, uri: str, folder: Path, stem: str, where: str) -> MediaFile:
        """Copy the file behind `uri` to `folder`/`stem`; raises MediaError naming `where`."""
        folder.mkdir(parents=True, exist_ok=True)
        upload = self._upload(uri, where)
        if upload is not None and upload.is_inline:
            return self._decode(upload, folder / stem, where)
        found = self._earlier(uri, where) if upload is None else (upload.path, upload.name or upload.part)
        if found is not None:
            return self._copy(found, folder, stem, where)
        if not self.fetch_urls and uri.lower().startswith(("http:", "https:")):
            raise MediaError(where, uri, "this server does not fetch URLs; upload the file instead")
        with open_source(uri, replace(self.policy, temp_folder=folder), field=where) as source:
            return self._copy((source.path, source.name), folder, stem, where)

    def _copy(self, found: tuple[Path, str], folder: Path, stem: str, where: str) -> MediaFile:
        source, name = found
        target = folder / (stem + safe_suffix(name))
        try:
            shutil.copyfile(source, target)
        except FileNotFoundError:
            raise MediaError(where, name, "that job or its input is not here any more") from None
        self.names[target.name] = name
        return MediaFile(target, where, name, self.policy.limits)

    def _decode(self, upload: Upload, target: Path, where: str) -> MediaFile:
        file = MediaFile(target, where, upload.name, self.policy.limits)
        with upload.path.open(encoding="utf-8", newline="") as text, target.open("wb") as out:
            write_inline(out, iter(lambda: text.read(_PIECE), ""), file)
        self.names[target.name] = upload.name
        return file

    def _upload(self, uri: str, where: str) -> Upload | None:
        wanted = uri.removeprefix(UPLOAD)
        matches = [upload for upload in self.uploads if wanted in (upload.part, upload.name)]
        if len(matches) > 1:
            raise MediaError(where, uri, "more than one uploaded file has this name")
        if matches:
            self.used.add(matches[0].path)
            return matches[0]
        if uri.startswith(UPLOAD):
            raise MediaError(where, uri, "no uploaded file of this request has this name")
        return None

    def _earlier(self, uri: str, where: str) -> tuple[Path, str] | None:
        if not uri.startswith("job:"):
            return None
        match = _JOB.fullmatch(uri)
        folder = self.inputs_of(match[1]) if match else None
        if match is None or folder is None or not (folder / match[2]).is_file():
            raise MediaError(where, uri, "that job or its input is not here any more")
        return folder / match[2], read_names(folder).get(match[2], match[2])
