"""One member of a tar archive on this machine, by offset: for batch jobs whose media lie in tar shards.

    tar+offset://PATH:HEADER     tar+b64header://PATH:HEADER      (both mean the same)

PATH is a path (the last colon ends it). HEADER is base64url, padding optional, of a JSON object:
{"schema": "sglang.tar_member_ref/v1", "offset_data": first byte, "size": bytes, "member": name, optional}.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import IO, Any

from h3serve.media.sources.media_file import MediaFile

SCHEMA = "sglang.tar_member_ref/v1"
ALLOWED = "a tar uri is tar+offset://PATH:HEADER, its header base64url of JSON with schema, offset_data and size"
_MAX_HEADER = 8192  # characters
_CHUNK = 1 << 20


@dataclass(frozen=True)
class TarMember:
    """Bytes `offset` to `offset + size` of the archive."""

    archive: str
    offset: int
    size: int


def parse_member(uri: str, media: MediaFile) -> TarMember:
    """Read the uri; MediaError if it is malformed or asks for nothing or too much."""
    archive, colon, encoded = uri.partition("://")[2].rpartition(":")
    if not colon or not archive or len(encoded) > _MAX_HEADER:
        raise media.error(ALLOWED)
    header = _header(encoded, media)
    offset, size = header.get("offset_data"), header.get("size")
    if header.get("schema") != SCHEMA or type(offset) is not int or type(size) is not int or offset < 0:
        raise media.error(f"{ALLOWED}; the schema is {SCHEMA}")
    if not 0 < size <= media.limits.max_file_bytes:
        raise media.error(f"the member has {size} bytes; 1 to {media.limits.max_file_bytes} are taken")
    return TarMember(archive, offset, size)


def write_member(out: IO[bytes], archive: MediaFile, member: TarMember) -> None:
    """Copy the member into `out`; MediaError if the archive ends before it does. The archive may have any size."""
    missing = member.offset + member.size - archive.check_readable()
    if missing > 0:
        raise archive.error(f"the archive ends {missing} bytes before the member does")
    left = member.size
    with archive.path.open("rb") as file:
        file.seek(member.offset)
        while left and (chunk := file.read(min(left, _CHUNK))):
            out.write(chunk)
            left -= len(chunk)
    if left:
        raise archive.error("the archive became shorter while it was read")


def _header(encoded: str, media: MediaFile) -> dict[str, Any]:
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise media.error(ALLOWED) from error
    if not isinstance(header, dict):
        raise media.error(ALLOWED)
    return header
