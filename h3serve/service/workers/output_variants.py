"""What is served beside a finished MP4: its audio alone and a thumbnail."""

from __future__ import annotations

import hashlib
from pathlib import Path

import av

from h3serve.media.write.mp4_writer import MUXER
from h3serve.service.jobs.job import Json
from h3serve.system.disk_files import flush

NAMES = {"video": "video.mp4", "audio": "audio.m4a", "thumbnail": "thumbnail.jpg"}
TYPES = {"video": "video/mp4", "audio": "audio/mp4", "thumbnail": "image/jpeg"}
_THUMBNAIL_SIDE = 480


def write_variants(video: Path) -> None:
    """Write the audio (the same packets, not encoded again) and the first frame beside `video`."""
    _copy_audio(video, video.with_name(NAMES["audio"]))
    with av.open(str(video)) as box:
        image = next(box.decode(video=0)).to_image()
    image.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
    image.save(video.with_name(NAMES["thumbnail"]), quality=85)


def keep_files(folder: Path) -> Json:
    """variant -> {name, bytes, sha256, type} of the files that exist, each flushed to the disk.

    Whatever else lies in the folder was temporary and is removed.
    """
    for path in folder.iterdir():
        if path.name not in NAMES.values():
            path.unlink()
    present = {v: folder / name for v, name in NAMES.items() if (folder / name).exists()}
    return {variant: _describe(variant, path) for variant, path in present.items()}


def _copy_audio(video: Path, target: Path) -> None:
    with av.open(str(video)) as source, av.open(str(target), "w", format="ipod", options=MUXER) as box:
        track = source.streams.audio[0]
        copy = box.add_stream_from_template(track)
        for packet in source.demux(track):
            if packet.dts is not None:
                packet.stream = copy
                box.mux(packet)


def _describe(variant: str, path: Path) -> Json:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    flush(path)
    return {
        "name": path.name,
        "bytes": path.stat().st_size,
        "sha256": digest.hexdigest(),
        "type": TYPES[variant],
    }
