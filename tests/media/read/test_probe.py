"""What is known of a file before decoding it; what is not a usable file is refused in one sentence."""

import os
import wave
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from h3serve.core.errors import MediaError
from h3serve.media.read.probe import probe_media
from h3serve.media.sources.media_file import IngestLimits, MediaFile
from tests.media.films import counter, film, tone


def save_wav(path: Path, rate: int = 32_000, seconds: float = 2.0) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bytes(2 * round(rate * seconds)))
    return path


def with_cover(path: Path, source: Path) -> Path:
    """The sound of `source` with a picture attached, as music files have."""
    container = "mp4" if path.suffix == ".m4a" else None
    Image.new("RGB", (20, 20), "red").save(path.with_suffix(".png"))
    with (
        av.open(str(source)) as sound,
        av.open(str(path.with_suffix(".png"))) as cover,
        av.open(str(path), "w", format=container) as out,
    ):
        copy_streams(out, [sound.streams.audio[0], cover.streams.video[0]], cover=True)
    return path


def copy_streams(out: av.container.OutputContainer, streams: list[av.stream.Stream], cover: bool = False) -> None:
    outputs = [out.add_stream_from_template(stream) for stream in streams]
    if cover:
        outputs[-1].disposition = av.stream.Disposition.attached_pic
    for stream, output in zip(streams, outputs, strict=True):
        for packet in stream.container.demux(stream):
            if packet.size:
                packet.stream = output
                out.mux(packet)


def test_clip_with_sound(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", [counter(i) for i in range(48)], sound=tone(1.5))
    probe = probe_media(MediaFile(path))
    assert (probe.kind, probe.width, probe.height, probe.fps, probe.has_audio) == ("video", 64, 32, 24, True)
    assert probe.seconds == pytest.approx(2.0)
    assert probe.audio_seconds == pytest.approx(1.5, abs=0.002)  # without the padding of the last packet
    assert probe.num_bytes == path.stat().st_size


def test_silent_clip(tmp_path: Path) -> None:
    probe = probe_media(MediaFile(film(tmp_path / "a.mp4", [counter(i) for i in range(5)])))
    assert (probe.has_audio, probe.audio_seconds) == (False, 0.0)


@pytest.mark.parametrize("rate", [8_000, 44_100, 96_000])
def test_sound(tmp_path: Path, rate: int) -> None:
    probe = probe_media(MediaFile(save_wav(tmp_path / "a.mp4", rate)))  # the name lies
    assert (probe.kind, probe.has_audio, probe.width, probe.fps) == ("audio", True, 0, None)
    assert probe.seconds == probe.audio_seconds == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize("suffix", ["mp3", "m4a", "flac"])
def test_cover_art_is_not_a_film(tmp_path: Path, suffix: str) -> None:
    codec = {"mp3": "libmp3lame", "m4a": "aac", "flac": "flac"}[suffix]
    plain = tmp_path / f"plain.{suffix}"
    with av.open(str(plain), "w") as box:
        stream = box.add_stream(codec, rate=32_000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(tone(1.0), "fltp", "stereo")
        frame.sample_rate = 32_000
        box.mux(stream.encode(frame))
        box.mux(stream.encode(None))
    path = with_cover(tmp_path / f"a.{suffix}", plain)
    with av.open(str(path)) as box:
        assert len(box.streams.video) == 1
    probe = probe_media(MediaFile(path))
    assert (probe.kind, probe.has_audio) == ("audio", True)
    assert probe.seconds == pytest.approx(1.0, abs=0.08)


def test_subtitles_and_data_are_ignored(tmp_path: Path) -> None:
    film(tmp_path / "a.mkv", [counter(i) for i in range(24)])
    (tmp_path / "a.srt").write_text("1\n00:00:00,000 --> 00:01:00,000\nlong\n")
    with (
        av.open(str(tmp_path / "a.mkv")) as box,
        av.open(str(tmp_path / "a.srt")) as words,
        av.open(str(tmp_path / "b.mkv"), "w") as out,
    ):
        copy_streams(out, [words.streams[0], box.streams[0]])
    probe = probe_media(MediaFile(tmp_path / "b.mkv"))
    assert (probe.kind, probe.has_audio) == ("video", False)
    assert probe.seconds == pytest.approx(1.0, abs=0.01)


def test_truncated_film_without_index(tmp_path: Path) -> None:
    """B25: the index of a plain MP4 is at its end; without it nothing can be read."""
    raw = film(tmp_path / "a.mp4", [counter(i) for i in range(24)]).read_bytes()
    (tmp_path / "b.mp4").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(MediaError, match="'b.mp4' is not usable: it cannot be read"):
        probe_media(MediaFile(tmp_path / "b.mp4"))


def test_film_without_frames(tmp_path: Path) -> None:
    """B25: a well-formed file in which there is nothing."""
    with av.open(str(tmp_path / "a.mkv"), "w") as box:
        stream = box.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
        box.start_encoding()
    with pytest.raises(MediaError, match="no pictures|no picture and no sound|cannot be read"):
        probe_media(MediaFile(tmp_path / "a.mkv"))


PLAYLISTS = {
    "a.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{target}\n#EXT-X-ENDLIST\n",
    "a.ffconcat": "ffconcat version 1.0\nfile '{target}'\n",
    "a.sdp": "v=0\nc=IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\n",
    "a.mpd": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"></MPD>',
    "a.txt": "just words, named or not",
}


@pytest.mark.parametrize("name", PLAYLISTS)
def test_files_that_point_elsewhere_are_not_followed(tmp_path: Path, name: str) -> None:
    """A list that names another file must not make us read that file."""
    target = film(tmp_path / "secret.ts", [counter(i) for i in range(24)], options={"crf": "8", "bf": "0"})
    (tmp_path / name).write_text(PLAYLISTS[name].format(target=target))
    (tmp_path / "a.mp4").write_text(PLAYLISTS[name].format(target=target))
    for path in (tmp_path / name, tmp_path / "a.mp4"):
        with pytest.raises(MediaError, match="a picture must be JPEG.*; a video MP4.*; a sound WAV"):
            probe_media(MediaFile(path))


def test_odd_paths(tmp_path: Path) -> None:
    raw = film(tmp_path / "a.mp4", [counter(i) for i in range(5)]).read_bytes()
    for name in ("concat:a|b.mp4", "é ü.mp4", "a%05d.mp4", "http:x"):
        (tmp_path / name).write_bytes(raw)
        assert probe_media(MediaFile(tmp_path / name)).kind == "video"


def test_special_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    for path in (tmp_path / "pipe.mp4", Path("/dev/zero")):
        with pytest.raises(MediaError, match="no such file"):
            probe_media(MediaFile(path))


def test_sound_without_samples(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="empty|cannot be read"):
        probe_media(MediaFile(save_wav(tmp_path / "a.wav", seconds=0)))


def test_long_silence_is_not_decoded(tmp_path: Path) -> None:
    """B26: an hour in a small file is known to be an hour without unpacking them."""
    with av.open(str(tmp_path / "a.flac"), "w") as box:
        stream = box.add_stream("flac", rate=8_000, layout="mono", format="s16")
        for start in range(0, 3600 * 8_000, 8_000_000):
            length = min(8_000_000, 3600 * 8_000 - start)
            frame = av.AudioFrame.from_ndarray(np.zeros((1, length), np.int16), "s16", "mono")
            frame.sample_rate, frame.pts = 8_000, start
            box.mux(stream.encode(frame))
        box.mux(stream.encode(None))
    assert (tmp_path / "a.flac").stat().st_size < 1_000_000
    assert probe_media(MediaFile(tmp_path / "a.flac")).seconds == pytest.approx(3600)


def test_looking_through_a_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In packets, and in time: a file on a slow disk, or one made to be slow, holds nobody."""
    path = film(tmp_path / "a.mp4", [counter(i) for i in range(48)])
    with pytest.raises(MediaError, match="more than 40 frames"):
        probe_media(MediaFile(path, limits=IngestLimits(max_packets=40)))
    assert probe_media(MediaFile(path, limits=IngestLimits(max_packets=48))).seconds == pytest.approx(2.0)
    now = iter(range(0, 10**6, 7))
    monkeypatch.setattr("h3serve.media.read.probe.time.monotonic", lambda: next(now))
    with pytest.raises(MediaError, match="longer than 20 s"):
        probe_media(MediaFile(path))
