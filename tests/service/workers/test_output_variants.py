import struct
from pathlib import Path

import av

from h3serve.service.workers.output_variants import keep_files, write_variants
from tests.media.test_mp4 import boxes
from tests.service.fake_worker import FRAMES, SIDE, write


def test_sound_and_thumbnail_come_from_the_film(tmp_path: Path) -> None:
    video = tmp_path / "video.mp4"
    write(video, 3)
    (tmp_path / "half.partial").write_text("x")
    write_variants(video)
    files = keep_files(tmp_path)
    assert set(files) == {"video", "audio", "thumbnail"}
    assert not (tmp_path / "half.partial").exists()
    with av.open(str(tmp_path / "audio.m4a")) as box:
        assert not box.streams.video
        samples = sum(frame.samples for frame in box.decode(audio=0))
    assert abs(samples / 32000 - FRAMES / 24) < 0.1
    # Its own length is that of the sound in the film, to the tick: not rounded to milliseconds.
    (sound,), (_, track) = (list(boxes((tmp_path / name).read_bytes(), "tkhd")) for name in ("audio.m4a", "video.mp4"))
    assert struct.unpack_from(">I", sound, 20) == struct.unpack_from(">I", track, 20)
    (movie,) = boxes((tmp_path / "audio.m4a").read_bytes(), "mvhd")
    assert struct.unpack_from(">I", movie, 12) == (96_000,)
    with av.open(str(tmp_path / "thumbnail.jpg")) as picture:
        frame = next(picture.decode(video=0))
        assert (frame.width, frame.height) == (SIDE, SIDE)


def test_the_facts_are_those_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "video.mp4").write_bytes(b"abc")
    assert keep_files(tmp_path) == {
        "video": {
            "name": "video.mp4",
            "bytes": 3,
            "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "type": "video/mp4",
        }
    }
