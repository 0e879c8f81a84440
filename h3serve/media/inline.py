"""Media carried in the request itself: `data:` and `base64://` uris.

Forgiving as far as the meaning is clear: parameters, upper case, line breaks, missing padding, percent
escapes, and both alphabets (+/ and -_).
"""

from __future__ import annotations

import binascii
import re
from typing import IO
from urllib.parse import unquote, unquote_to_bytes

from h3serve.media.sources import MediaFile

_SCHEMES = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
# How PNG, JPEG, GIF, RIFF, MP4, ID3, Ogg, FLAC, Matroska and TIFF begin in base64, and enough of it to be no path.
_BASE64 = re.compile(r"(iVBORw|/9j/|R0lGOD|UklGR|AAAA|SUQz|T2dnUw|ZkxhQ|GkXfo|SUkqA|TU0AK)[A-Za-z0-9+/_=\s-]{58,}")
_SPACE = re.compile(r"\s+")
_CHUNK = 1 << 22  # characters; a multiple of 4


def write_data(out: IO[bytes], uri: str, media: MediaFile) -> None:
    """Decode `data:[type][;name=value…][;base64],payload` into `out`. Raises MediaError."""
    header, comma, payload = uri[len("data:") :].partition(",")
    if not comma:
        raise media.error("a data: uri has a comma before its content, as in data:image/png;base64,iVBOR…")
    if header.strip().lower().endswith(";base64"):
        _write_base64(out, payload, media)
    else:
        _check_length(len(payload), media)
        out.write(unquote_to_bytes(payload))
    _check_not_empty(out, media)


def write_base64(out: IO[bytes], uri: str, media: MediaFile) -> None:
    """Decode `base64://payload` into `out`. Raises MediaError."""
    _write_base64(out, uri[len("base64://") :], media)
    _check_not_empty(out, media)


def hint(uri: str) -> str:
    """What to say about a text that was taken for a path but looks like a medium, or an empty string."""
    if _SCHEMES.match(uri.strip()) and uri != uri.strip():
        return "; take the blank before it away"
    if _BASE64.fullmatch(uri):
        return "; it looks like base64: write data:;base64, before it"
    return ""


def _write_base64(out: IO[bytes], payload: str, media: MediaFile) -> None:
    text = unquote(payload) if "%" in payload else payload
    text = _SPACE.sub("", text).translate(str.maketrans("-_", "+/")).rstrip("=")
    _check_length(len(text) * 3 // 4, media)
    if len(text) % 4 == 1:
        raise media.error("its base64 content is cut off")
    try:
        for begin in range(0, len(text), _CHUNK):
            part = text[begin : begin + _CHUNK]
            out.write(binascii.a2b_base64(part + "=" * (-len(part) % 4), strict_mode=True))
    except ValueError as error:  # binascii.Error, and characters outside ASCII
        raise media.error("its content is not base64") from error


def _check_length(num_bytes: int, media: MediaFile) -> None:
    if num_bytes > media.limits.max_file_bytes:
        raise media.error(f"it has {num_bytes} bytes, at most {media.limits.max_file_bytes} are taken")


def _check_not_empty(out: IO[bytes], media: MediaFile) -> None:
    if out.tell() == 0:
        raise media.error("it has no content")
