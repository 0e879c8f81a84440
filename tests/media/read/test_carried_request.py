"""Reading the request that an MP4 carries."""

from pathlib import Path

import av
import numpy as np
import pytest

from h3serve.core.errors import MediaError
from h3serve.core.request import parse_request
from h3serve.core.video_record import video_record
from h3serve.media.read.carried_request import carried_request
from h3serve.media.sources.media_file import MediaFile
from h3serve.media.write.mp4_writer import mp4_writer


def made(path: Path, record: str | None) -> MediaFile:
    frames = np.zeros((12, 64, 64, 3), np.uint8)
    with mp4_writer(path, width=64, height=64, preset="ultrafast", record=record) as writer:
        writer.write_audio(np.zeros((2, 16_000), np.float32) + 0.01)
        writer.write_frames(frames)
    return MediaFile(path, "--from", path.name)


@pytest.mark.parametrize("prompt", ["a lion", "a 'quoted' \"line\"\n狮子 😀\t", "word " * 8000])
def test_what_was_written_is_read(tmp_path: Path, prompt: str) -> None:
    request = parse_request({"task": "t2va", "prompt": prompt, "target": {"duration_seconds": 4}, "seed": 2**62 + 1})
    text = video_record(request, version="1", quality="exact", checkpoint=None, adapters=[])
    assert parse_request(carried_request(made(tmp_path / "a.mp4", text))) == request


@pytest.mark.parametrize("comment", [None, "a holiday", "{"])
def test_a_video_without_one_is_refused(tmp_path: Path, comment: str | None) -> None:
    with pytest.raises(MediaError, match="carries no request"):
        carried_request(made(tmp_path / "a.mp4", comment))


def test_no_video_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no video")
    with pytest.raises(MediaError, match="cannot be read"):
        carried_request(MediaFile(tmp_path / "a.mp4", "--from", "a.mp4"))


def test_other_players_see_a_comment(tmp_path: Path) -> None:
    with av.open(str(made(tmp_path / "a.mp4", "as it is").path)) as box:
        assert box.metadata["comment"] == "as it is"
