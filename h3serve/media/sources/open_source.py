"""From the uri of a condition to a file that can be read; whatever had to be copied is gone afterwards.

picture.png, /data/clip.mp4, file:///data/clip.mp4     read in place, inside the allowed folders
data:image/png;base64,…   base64://…                   inline.py
tar+offset://…            tar+b64header://…            tar_member.py
http://…                  https://…                    web.py
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import unquote

from h3serve.core.errors import MediaError, OutputError
from h3serve.media.sources.data_uri import hint, in_pieces, write_inline
from h3serve.media.sources.media_file import ANYWHERE, MediaFile, SourcePolicy
from h3serve.media.sources.tar_member import parse_member, write_member
from h3serve.media.sources.web_media import shown_url, write_url

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://|(data):", re.IGNORECASE)
ALLOWED = "use a path, file://, http(s)://, data:, base64://, tar+offset:// or tar+b64header://"


@contextmanager
def open_source(uri: str, policy: SourcePolicy = ANYWHERE, *, field: str = "media") -> Iterator[MediaFile]:
    """The medium behind `uri` as a MediaFile, valid inside the block.

    Raises MediaError (naming `field`) if the uri is malformed, not allowed, too large or cannot be reached.
    Fetching blocks and must not be called from a running event loop.
    """
    match = _SCHEME.match(uri)
    scheme = (match[1] or match[2]).lower() if match else ""
    media = MediaFile(Path(), field, _shown(uri, scheme), policy.limits)
    if scheme in ("", "file"):
        file = _local(_file_path(uri, media) if scheme else uri, media, policy)
        file.check_size()
        yield file
    elif scheme in ("http", "https"):
        with _copied(media, policy, lambda out: write_url(out, uri, media, policy)) as file:
            yield file
    elif scheme in ("data", "base64"):
        with _copied(media, policy, lambda out: write_inline(out, in_pieces(uri), media)) as file:
            yield file
    elif scheme in ("tar+offset", "tar+b64header"):
        member = parse_member(uri, media)
        archive = _local(member.archive, media, policy)
        with _copied(media, policy, lambda out: write_member(out, archive, member)) as file:
            yield file
    else:
        raise media.error(f"{scheme}:// is not supported; {ALLOWED}")


@contextmanager
def _copied(media: MediaFile, policy: SourcePolicy, write: Callable[[IO[bytes]], None]) -> Iterator[MediaFile]:
    """A temporary file filled by `write`; removed at the end of the block however it ends."""
    with ExitStack() as stack:
        try:
            new = tempfile.NamedTemporaryFile(  # noqa: SIM115 (it is entered, in the next line)
                prefix="h3serve-", suffix=".media", dir=policy.temp_folder
            )
            out = stack.enter_context(new)
            write(out)
            out.flush()
        except OSError as error:  # a full disk is not the person's mistake
            raise OutputError(f"a copy of {media.field} could not be stored: {error.strerror}") from error
        yield MediaFile(Path(out.name), media.field, media.name, media.limits)


def _local(path: str, media: MediaFile, policy: SourcePolicy) -> MediaFile:
    """The file at `path` if it may be read; links are followed first, so that none leads outside."""
    if not path.strip() or "\0" in path:
        raise MediaError(media.field, path, f"it is empty; {ALLOWED}")
    try:
        place = ((policy.base or Path.cwd()) / Path(path).expanduser()).resolve()
        if policy.folders is not None and not any(place.is_relative_to(f.resolve()) for f in policy.folders):
            raise media.error("local files are read only from the folders that the server allows")
        file = MediaFile(place, media.field, media.name, media.limits)
        file.check_readable()
    except MediaError as error:
        raise media.error(error.allowed + hint(path)) from error
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, an unknown ~user, no possible name
        raise media.error("there is no such file" + hint(path)) from error
    return file


def _file_path(uri: str, media: MediaFile) -> str:
    host, _, path = uri[len("file://") :].partition("/")
    if host not in ("", "localhost"):
        raise media.error("a file:// uri has three slashes and no host: file:///folder/name")
    return unquote(f"/{path}")


def _shown(uri: str, scheme: str) -> str:
    """What errors call it: short, and without the keys that signed addresses carry."""
    if scheme in ("http", "https"):
        return shown_url(uri)
    if scheme in ("data", "base64"):
        return f"{scheme}: uri of {len(uri)} characters"
    return uri
