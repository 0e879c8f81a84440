"""Where a video begins and what is on screen when: cuts between key frames, edit lists, repeated pictures."""

import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from h3serve.core.errors import MediaError
from h3serve.media.read.audio import load_audio
from h3serve.media.read.container import whole_packets
from h3serve.media.read.frame_clock import find_opening
from h3serve.media.read.probe import probe_media
from h3serve.media.read.video import decode_clip
from h3serve.media.sources.media_file import MediaFile
from tests.media.films import count, counter, counts, film, tone
from tests.media.sounds import click, click_time

CANVAS = (64, 32)
GROUP = 48  # frames from key frame to key frame


def long_video(path: Path, codec: str, click_at: float) -> Path:
    """Five seconds, a key frame every two, and a click; frame k shows k."""
    options = {"g": str(GROUP), "bf": "2", "crf": "8", "x264-params": f"keyint={GROUP}:min-keyint={GROUP}:scenecut=0"}
    if codec == "libx265":
        options = {"crf": "8", "x265-params": f"keyint={GROUP}:min-keyint={GROUP}:scenecut=0:log-level=none"}
    if codec == "libvpx-vp9":
        options = {"g": str(GROUP), "crf": "8", "b": "0", "deadline": "realtime", "cpu-used": "8"}
    sound = click(32_000, 5.0, click_at)
    # MPEG-2 and MPEG-4 encoders want a clock of whole frames.
    with av.open(str(path), "w") as box:
        video = box.add_stream(codec, rate=24)
        video.width, video.height, video.pix_fmt = 64, 32, "yuv420p"
        if codec in ("mpeg2video", "mpeg4"):
            options, video.bit_rate = {"g": str(GROUP), "bf": "2", "sc_threshold": "1000000000"}, 4_000_000
        video.options = options
        audio = box.add_stream("aac" if path.suffix != ".webm" else "libopus", rate=48_000, layout="stereo")
        for index in range(120):
            frame = av.VideoFrame.from_ndarray(counter(index), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 24)
            box.mux(video.encode(frame))
        box.mux(video.encode(None))
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound), "fltp", "stereo")
        frame.sample_rate, frame.time_base, frame.pts = 32_000, Fraction(1, 32_000), 0
        for part in av.AudioResampler("fltp" if path.suffix != ".webm" else "s16", "stereo", 48_000).resample(frame):
            box.mux(audio.encode(part))
        box.mux(audio.encode(None))
    return path


def cut(source: Path, target: Path, begin: float) -> Path:
    """`source` from `begin` seconds on, packet by packet, key frame or not."""
    with av.open(str(source)) as box, av.open(str(target), "w") as out:
        copies = {s.index: out.add_stream_from_template(s) for s in box.streams}
        for packet in box.demux():
            if packet.size and float((packet.dts if packet.pts is None else packet.pts) * packet.time_base) >= begin:
                packet.stream = copies[packet.stream.index]
                out.mux(packet)
    return target


CUTS = [
    ("mkv", "libx264"),
    ("ts", "libx264"),
    ("mp4", "libx264"),
    ("mov", "libx265"),
    ("ts", "mpeg2video"),
    ("mkv", "mpeg4"),
    ("webm", "libvpx-vp9"),
]


@pytest.mark.parametrize(("suffix", "codec"), CUTS)
def test_a_video_cut_between_key_frames(tmp_path: Path, suffix: str, codec: str) -> None:
    """Shard one second in, half-way to the key frame at two: frame 48 comes first, and its sound with it."""
    source = long_video(tmp_path / f"a.{suffix}", codec, click_at=3.5)
    file = MediaFile(cut(source, tmp_path / f"b.{suffix}", 1.2))
    probe = probe_media(file)
    first, seconds = GROUP, 5 - GROUP / 24
    assert probe.skipped_seconds == pytest.approx(GROUP / 24 - 1.2, abs=0.13)  # decoding order is not display order
    assert probe.seconds == pytest.approx(seconds, abs=0.05)
    assert probe.audio_seconds == pytest.approx(seconds, abs=0.06)
    frames = decode_clip(file, CANVAS, round(probe.seconds * 24))
    assert counts(frames[:60]) == list(range(first, first + 60))
    wave = load_audio(file, 2.0, soundtrack=True)
    assert click_time(wave) == pytest.approx(3.5 - first / 24, abs=2e-3)
    late = decode_clip(file, CANVAS, 12, start_seconds=2.25)
    assert counts(late) == list(range(first + 54, first + 66))
    assert click_time(load_audio(file, 0.7, start_seconds=1.0, soundtrack=True)) == pytest.approx(0.5, abs=2e-3)


def test_an_avi_cut_between_key_frames(tmp_path: Path) -> None:
    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as box:
        video = box.add_stream("mpeg4", rate=24)
        video.width, video.height, video.pix_fmt, video.bit_rate = 64, 32, "yuv420p", 4_000_000
        video.options = {"g": "24", "sc_threshold": "1000000000"}
        for index in range(96):
            frame = av.VideoFrame.from_ndarray(counter(index), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 24)
            for packet in video.encode(frame):
                if index >= 12:
                    packet.pts, packet.dts = packet.pts - 12, packet.dts - 12
                    box.mux(packet)
        box.mux([p for p in video.encode(None) if p.size])
    probe = probe_media(MediaFile(path))
    assert probe.skipped_seconds == pytest.approx(0.5)
    frames = decode_clip(MediaFile(path), CANVAS, 48)
    assert counts(frames) == list(range(24, 72))


def test_a_whole_video_loses_nothing(tmp_path: Path) -> None:
    for suffix, codec in CUTS:
        if suffix == "ts":
            continue  # its sound begins 21 ms before its video: nothing in it says that this is the encoder's run-in
        file = MediaFile(long_video(tmp_path / f"a.{suffix}", codec, click_at=1.0))
        opening = find_opening(file)
        assert opening.skipped == 0, suffix
        assert counts(decode_clip(file, CANVAS, 12)) == list(range(12)), suffix
        assert click_time(load_audio(file, 2.0, soundtrack=True)) == pytest.approx(1.0, abs=2e-3), suffix


def trimmed(path: Path, frames: int) -> Path:
    """The MP4 at `path` with an edit list that begins `frames` later, as phones trim."""
    raw = bytearray(path.read_bytes())
    ticks = 0
    at = raw.index(b"mdhd")
    scale = struct.unpack_from(">I", raw, at + 4 + 12)[0]
    ticks = frames * scale // 24
    movie = struct.unpack_from(">I", raw, raw.index(b"mvhd") + 4 + 12)[0]
    at = raw.index(b"elst")
    duration, media_time = struct.unpack_from(">Ii", raw, at + 12)
    struct.pack_into(">Ii", raw, at + 12, duration - frames * movie // 24, media_time + ticks)
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("frames", [1, 20, 24, 30, 47])
def test_a_trimmed_phone_clip(tmp_path: Path, frames: int) -> None:
    """What lies before the edit list's begin is decoded but not shown: nothing is missing."""
    options = {"crf": "8", "bf": "2", "g": str(GROUP)}
    file = MediaFile(trimmed(film(tmp_path / "a.mp4", [counter(i) for i in range(96)], options=options), frames))
    probe = probe_media(file)
    assert probe.skipped_seconds == 0
    assert probe.seconds == pytest.approx((96 - frames) / 24, abs=0.01)
    assert counts(decode_clip(file, CANVAS, 96 - frames)) == list(range(frames, 96))


@pytest.mark.parametrize("frames", [1, 20, 47])
def test_a_clip_trimmed_at_its_end(tmp_path: Path, frames: int) -> None:
    """What lies behind the edit list's end is in the file, but not of the video."""
    path = film(tmp_path / "a.mp4", [counter(i) for i in range(96)], options={"crf": "8", "bf": "2", "g": str(GROUP)})
    raw = bytearray(path.read_bytes())
    movie, at = struct.unpack_from(">I", raw, raw.index(b"mvhd") + 4 + 12)[0], raw.index(b"elst") + 12
    struct.pack_into(">I", raw, at, struct.unpack_from(">I", raw, at)[0] - frames * movie // 24)
    path.write_bytes(raw)
    assert probe_media(MediaFile(path)).seconds == pytest.approx((96 - frames) / 24, abs=0.01)


def test_a_head_that_never_ends_is_refused(tmp_path: Path) -> None:
    """Without any key frame there is nothing to show, and looking for one ends."""
    source = film(tmp_path / "a.mkv", [counter(i) for i in range(60)], options={"crf": "8", "bf": "0", "g": "600"})
    file = MediaFile(cut(source, tmp_path / "b.mkv", 0.5))
    with pytest.raises(MediaError, match="none of its pictures can be decoded"):
        probe_media(file)


FORMAT_OF = {"mjpeg": {"pix_fmt": "yuvj420p"}}


def avi_with_repeats(path: Path, shown: list[int], codec: str = "mpeg4") -> Path:
    """An AVI in which frame k is `shown[k]`; a repeated one is an empty chunk, which FFmpeg's writer makes of gaps."""
    places = [k for k, picture in enumerate(shown) if k == 0 or picture != shown[k - 1]]
    times = [Fraction(k, 24) for k in places]
    film(path, [counter(shown[k]) for k in places], times, codec=codec, options={}, **FORMAT_OF.get(codec, {}))
    trailing = len(shown) - 1 - places[-1]
    return with_trailing(path, trailing) if trailing else path


def with_trailing(path: Path, number: int) -> Path:
    """`number` more empty chunks at the end: in the stream, in its index, in the counts of both headers."""
    raw = bytearray(path.read_bytes())
    movi, index = raw.index(b"movi"), raw.index(b"idx1")
    chunk = struct.pack("<4sI", b"00dc", 0)
    (size,) = struct.unpack_from("<I", raw, index + 4)
    entries = bytes(raw[index + 8 : index + 8 + size])
    for extra in range(number):
        entries += struct.pack("<4sIII", b"00dc", 0, index - movi + 8 * extra, 0)
    for at in (raw.index(b"avih") + 8 + 16, raw.index(b"strh") + 8 + 32):
        struct.pack_into("<I", raw, at, struct.unpack_from("<I", raw, at)[0] + number)
    struct.pack_into("<I", raw, movi - 4, index - movi + 8 * number)
    out = bytes(raw[:index]) + chunk * number + b"idx1" + struct.pack("<I", len(entries)) + entries
    path.write_bytes(out[:4] + struct.pack("<I", len(out) - 8) + out[8:])
    return path


REPEATS: dict[str, Callable[[], list[int]]] = {
    "one": lambda: [k - (k >= 10) for k in range(48)],
    "several": lambda: [k // 3 * 3 for k in range(48)],
    "long": lambda: [k if k < 10 else max(9, k - 20) for k in range(60)],
    "at the end": lambda: [min(k, 40) for k in range(48)],
}


@pytest.mark.parametrize("name", REPEATS)
@pytest.mark.parametrize("codec", ["mpeg4", "mjpeg"])
def test_repeated_pictures_of_an_avi(tmp_path: Path, name: str, codec: str) -> None:
    shown = REPEATS[name]()
    file = MediaFile(avi_with_repeats(tmp_path / "a.avi", shown, codec))
    assert probe_media(file).seconds == pytest.approx(len(shown) / 24, abs=1e-6)
    assert counts(decode_clip(file, CANVAS, len(shown))) == shown


@pytest.mark.parametrize("start", [1.0, 2.5, 5.0])
def test_an_avi_from_a_start_time(tmp_path: Path, start: float) -> None:
    shown = [k - (k >= 30) - (k >= 90) for k in range(192)]
    file = MediaFile(avi_with_repeats(tmp_path / "a.avi", shown))
    begin = round(start * 24)
    assert counts(decode_clip(file, CANVAS, 24, start_seconds=start)) == shown[begin : begin + 24]


def test_an_avi_with_bidirectional_frames_from_a_start_time(tmp_path: Path) -> None:
    """After a seek such frames would be missing, and everything behind them early."""
    options = {"g": "24", "bf": "2", "sc_threshold": "1000000000"}
    file = MediaFile(film(tmp_path / "a.avi", [counter(i) for i in range(192)], codec="mpeg4", options=options))
    assert counts(decode_clip(file, CANVAS, 24)) == list(range(24))
    assert counts(decode_clip(file, CANVAS, 24, start_seconds=4.25)) == list(range(102, 126))


def test_an_avi_cut_short_is_not_held(tmp_path: Path) -> None:
    """Only a whole file's header is believed about repeats at its end."""
    path = film(tmp_path / "a.avi", [counter(i) for i in range(48)], codec="mjpeg", options={}, **FORMAT_OF["mjpeg"])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    seconds = probe_media(MediaFile(path)).seconds
    assert 0.7 < seconds < 1.3
    assert count(decode_clip(MediaFile(path), CANVAS, round(seconds * 24))[-1]) == pytest.approx(seconds * 24, abs=2)
    with pytest.raises(MediaError, match="ends or is damaged"):
        decode_clip(MediaFile(path), CANVAS, 48)


def test_of_two_video_tracks_the_default_or_the_larger(tmp_path: Path) -> None:
    def two(name: str, default: int | None) -> tuple[int, int]:
        path = tmp_path / name
        with av.open(str(path), "w") as box:
            streams = []
            for width, height in ((32, 16), (64, 48), (48, 32)):
                stream = box.add_stream("libx264", rate=24)
                stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
                streams.append(stream)
            for index, stream in enumerate(streams):
                chosen = default is None or index == default
                stream.disposition = av.stream.Disposition.default if chosen else av.stream.Disposition(0)
            for stream in streams:
                for _ in range(5):
                    picture = np.zeros((stream.height, stream.width, 3), np.uint8)
                    box.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
                box.mux(stream.encode(None))
        probe = probe_media(MediaFile(path))
        return probe.width, probe.height

    assert two("a.mkv", 2) == (48, 32)
    assert two("b.mkv", None) == (64, 48)


def counted_on(raw: bytes) -> bytes:
    """The transport stream with each PID's packets counted through (ISO 13818-1, 2.4.3.3)."""
    out, counters = bytearray(raw), dict[int, int]()
    for at in range(0, len(out), 188):
        pid = (out[at + 1] & 31) << 8 | out[at + 2]
        if out[at + 3] & 16:  # with payload
            out[at + 3] = out[at + 3] & 240 | counters.get(pid, 0)
            counters[pid] = (counters.get(pid, 0) + 1) % 16
    return bytes(out)


def test_a_stream_that_appears_on_the_way_ends_nothing(tmp_path: Path) -> None:
    """A transport stream whose sound begins behind 8 MB of filling; the video around it is read whole."""
    options = {"crf": "8", "bf": "0"}
    silent = film(tmp_path / "a.ts", [counter(i) for i in range(48)], options=options).read_bytes()
    times = [2 + Fraction(i, 24) for i in range(48)]
    pictures = [counter(i) for i in range(48, 96)]
    spoken = film(tmp_path / "b.ts", pictures, times, options=options, sound=tone(2.0), sound_start=2).read_bytes()
    filling = b"\x47\x1f\xff\x10" + bytes(184)
    (tmp_path / "c.ts").write_bytes(counted_on(silent + filling * 45_000 + spoken))
    assert counts(decode_clip(MediaFile(tmp_path / "c.ts"), CANVAS, 90))[:90] == list(range(90))


def test_packets_go_on_behind_one_that_pyav_cannot_place() -> None:
    """PyAV raises IndexError for some packets of streams that it does not know; the next call reads on."""

    class Packet:
        size, is_corrupt = 1, False

    class Box:
        def __init__(self) -> None:
            self.left = [Packet(), None, Packet(), Packet()]

        def demux(self, streams: list[object]) -> Iterator[Packet]:
            while self.left:
                packet = self.left.pop(0)
                if packet is None:
                    raise IndexError
                yield packet

    assert len(list(whole_packets(Box(), []))) == 3
