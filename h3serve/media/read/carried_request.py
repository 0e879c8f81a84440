"""The request that an MP4 carries, as h3serve wrote it."""

from __future__ import annotations

from typing import Any

from h3serve.core.video_record import request_of_record
from h3serve.media.read.container import open_media
from h3serve.media.sources.media_file import MediaFile


def carried_request(file: MediaFile) -> dict[str, Any]:
    """The fields of the request that made a video. MediaError where the file carries none.

    Its conditions have kinds and roles but no files.
    """
    with open_media(file) as box:
        comment = box.metadata.get("comment", "")
    try:
        return request_of_record(comment)
    except ValueError:
        raise file.error("it carries no request: h3serve writes one into its MP4 files, unless told not to") from None
