"""Media carried in the request itself: `data:` and `base64://` uris.

Forgiving as far as the meaning is clear: parameters, upper case, line breaks, missing padding, percent
escapes, and both alphabets (+/ and -_).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import IO
from urllib.parse import unquote, unquote_to_bytes

from h3serve.media.sources.media_file import MediaFile

_SCHEMES = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
# How PNG, JPEG, GIF, RIFF, MP4, ID3, Ogg, FLAC, Matroska and TIFF begin in base64, and enough of it to be no path.
_BASE64 = re.compile(r"(iVBORw|/9j/|R0lGOD|UklGR|AAAA|SUQz|T2dnUw|ZkxhQ|GkXfo|SUkqA|TU0AK)[A-Za-z0-9+/_=\s-]{58,}")
_PIECE = 1 << 16  # characters: no step takes long, so that other threads get their turn


def write_inline(out: IO[bytes], pieces: Iterable[str], media: MediaFile) -> None:
    """Decode `data:[type][;name=value…][;base64],payload` or `base64://payload` into `out`. Raises MediaError.

    `pieces` make up the uri; the first has everything before the payload.
    """
    pieces = iter(pieces)
    head = next(pieces, "")
    if head[:5].lower() == "data:":
        header, comma, begin = head[5:].partition(",")
        if not comma:
            raise media.error("a data: uri has a comma before its content, as in data:image/png;base64,iVBOR…")
        is_base64 = header.strip().lower().endswith(";base64")
    else:
        is_base64, begin = True, head[len("base64://") :]
    payload = _whole_escapes(chain([begin], pieces))
    for part in _from_base64(payload, media) if is_base64 else map(unquote_to_bytes, payload):
        out.write(part)
        if out.tell() > media.limits.max_file_bytes:
            raise media.error(f"it has {out.tell()} bytes or more, at most {media.limits.max_file_bytes} are taken")
    if out.tell() == 0:
        raise media.error("it has no content")


def in_pieces(uri: str) -> Iterator[str]:
    """A uri that is at hand, for `write_inline`."""
    return (uri[at : at + _PIECE] for at in range(0, len(uri), _PIECE))


def _whole_escapes(pieces: Iterable[str]) -> Iterator[str]:
    """The same text, cut so that no percent escape is in two pieces."""
    rest = ""
    for piece in pieces:
        text = rest + piece
        cut = text.rfind("%", max(0, len(text) - 2))
        rest = "" if cut < 0 else text[cut:]
        yield text if cut < 0 else text[:cut]
    yield rest


def _from_base64(pieces: Iterable[str], media: MediaFile) -> Iterator[bytes]:
    rest, has_ended = "", False
    try:
        for piece in pieces:
            text = unquote(piece) if "%" in piece else piece
            text = "".join(text.split()).replace("-", "+").replace("_", "/")
            content = text.rstrip("=")
            if has_ended and content:
                raise ValueError("content after padding")
            has_ended = has_ended or len(content) < len(text)
            rest += content
            cut = len(rest) // 4 * 4
            yield binascii.a2b_base64(rest[:cut], strict_mode=True)
            rest = rest[cut:]
        if len(rest) == 1:
            raise media.error("its base64 content is cut off")
        yield binascii.a2b_base64(rest + "=" * (-len(rest) % 4), strict_mode=True)
    except ValueError as error:  # binascii.Error, and characters outside ASCII
        raise media.error("its content is not base64") from error


def hint(uri: str) -> str:
    """What to say about a text that was taken for a path but looks like a medium, or an empty string."""
    if _SCHEMES.match(uri.strip()) and uri != uri.strip():
        return "; take the blank before it away"
    if _BASE64.fullmatch(uri):
        return "; it looks like base64: write data:;base64, before it"
    return ""
