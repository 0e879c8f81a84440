"""The MP4 writer: what it makes is right, and what goes wrong leaves nothing."""

import resource
from pathlib import Path

import av
import numpy as np
import pytest

from h3serve.core.errors import Cancelled, OutputError, RequestError
from h3serve.media.write.mp4_writer import as_uint8, mp4_writer, verify_mp4

WIDTH, HEIGHT = 64, 96


def frames(count: int) -> np.ndarray:
    """A red-green ramp on which a white column moves one step a frame."""
    out = np.zeros((count, HEIGHT, WIDTH, 3), np.uint8)
    out[..., 0] = np.linspace(0, 255, WIDTH, dtype=np.uint8)
    out[..., 1] = np.linspace(0, 255, HEIGHT, dtype=np.uint8)[:, None]
    for index in range(count):
        column = index * 8 % WIDTH
        out[index, :, column : column + 8] = 255
    return out


def tone(count: int) -> np.ndarray:
    """As many seconds of 440 Hz as `count` frames last, with a click at 0.25 s."""
    time = np.arange(count * 32_000 // 24) / 32_000
    wave = np.stack([np.sin(2 * np.pi * 440 * time), np.sin(2 * np.pi * 440 * time)]) * 0.2
    wave[:, 8000:8004] = 1.0
    return wave.astype(np.float32)


def write(path: Path, count: int = 22, chunk: int = 5) -> None:
    with mp4_writer(path, width=WIDTH, height=HEIGHT, num_frames=count) as writer:
        writer.write_audio(tone(count))
        for start in range(0, count, chunk):
            writer.write_frames(frames(count)[start : start + chunk])


@pytest.mark.parametrize("count", [1, 22, 107, 124])
def test_exact_length(tmp_path: Path, count: int) -> None:
    """B39: the file has the planned number of frames and lasts frames/24 s, to the tick."""
    write(tmp_path / "a.mp4", count)
    with av.open(str(tmp_path / "a.mp4")) as box:
        video, audio = box.streams
        assert video.frames == count
        assert video.duration * video.time_base * 24 == count
        assert video.start_time == audio.start_time == 0
        decoded = [frame.pts * frame.time_base * 24 for frame in box.decode(video)]
    assert decoded == list(range(count))


def test_streams_and_index_in_front(tmp_path: Path) -> None:
    write(tmp_path / "a.mp4")
    with av.open(str(tmp_path / "a.mp4")) as box:
        video, audio = (stream.codec_context for stream in box.streams)
        assert (video.name, video.pix_fmt, video.width, video.height) == ("h264", "yuv420p", 64, 96)
        bt709 = (video.colorspace, video.color_primaries, video.color_trc)
        assert (*bt709, video.color_range) == (1, 1, 1, 1)
        assert (audio.name, audio.sample_rate, audio.layout.name) == ("aac", 32_000, "stereo")
        assert (box.streams[0].average_rate, len(box.streams)) == (24, 2)
    raw = (tmp_path / "a.mp4").read_bytes()
    assert raw.index(b"moov") < raw.index(b"mdat")


def test_pictures_and_sound_come_back(tmp_path: Path) -> None:
    """B62: both streams of one file hold what was put in; the click stays at its time."""
    write(tmp_path / "a.mp4")
    with av.open(str(tmp_path / "a.mp4")) as box:
        pixels = np.stack([f.to_ndarray(format="rgb24") for f in box.decode(video=0)])
    with av.open(str(tmp_path / "a.mp4")) as box:
        wave = np.concatenate([f.to_ndarray() for f in box.decode(audio=0)], axis=1)
    assert np.abs(pixels.astype(int) - frames(22)).mean() < 6
    assert abs(int(np.abs(wave[0]).argmax()) - 8001) <= 32  # 1 ms
    spectrum = np.abs(np.fft.rfft(wave[0][9000:25000]))
    assert spectrum.argmax() * 2 == 440


def test_chunking_and_order_change_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.mp4", chunk=1)
    write(tmp_path / "b.mp4", chunk=22)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
    with mp4_writer(tmp_path / "c.mp4", width=WIDTH, height=HEIGHT) as writer:
        writer.write_frames(frames(22))
        writer.write_audio(tone(22)[:, :500])
        writer.write_audio(tone(22)[:, 500:])
    verify_mp4(tmp_path / "c.mp4", width=WIDTH, height=HEIGHT, num_frames=22)


def test_float_frames_are_clamped_scaled_and_truncated() -> None:
    values = np.array([-1.0, 0.0, 0.999, 1.0, 2.0, 100.9 / 255], np.float32)
    assert as_uint8(values).tolist() == [0, 0, 254, 255, 255, 100]


def bad_wave(value: float) -> np.ndarray:
    wave = tone(22)
    wave[1, 77] = value
    return wave


@pytest.mark.parametrize(
    ("pixels", "wave", "message"),
    [
        (frames(22), bad_wave(np.nan), "1 of 58666 samples that are NaN or infinite"),
        (frames(22), bad_wave(-np.inf), "NaN or infinite"),
        (np.full((1, HEIGHT, WIDTH, 3), np.nan, np.float32), tone(22), "frames have values"),
        (frames(22)[:, :32], tone(22), r"must be \[F, 96, 64, 3\], not \[22, 32, 64, 3\]"),
        (frames(22).astype(np.int32), tone(22), "not int32"),
        (frames(22), tone(22)[:1], "must be float32"),
        (frames(22), tone(22).astype(np.int16), "must be float32"),
        (frames(22), tone(30), "sound and picture differ by 0.33"),
        (frames(22)[:0], tone(22), "no frames"),
        (frames(21), tone(22), "frames is 21 instead of 22"),
    ],
)
def test_bad_results_leave_no_file(tmp_path: Path, pixels: np.ndarray, wave: np.ndarray, message: str) -> None:
    """Wrong or non-finite results are one clear error, never a broken file."""
    with (
        pytest.raises(OutputError, match=message),
        mp4_writer(tmp_path / "a.mp4", width=WIDTH, height=HEIGHT, num_frames=22) as writer,
    ):
        writer.write_audio(wave)
        writer.write_frames(pixels)
    assert list(tmp_path.iterdir()) == []


def test_no_sound_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match="no sound"),
        mp4_writer(tmp_path / "a.mp4", width=WIDTH, height=HEIGHT) as writer,
    ):
        writer.write_frames(frames(5))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [Cancelled("stop"), KeyboardInterrupt(), RuntimeError("bug")])
def test_cancellation_leaves_no_file_and_keeps_the_old_one(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "a.mp4").write_bytes(b"old")
    with (
        pytest.raises(type(error)),
        mp4_writer(tmp_path / "a.mp4", width=WIDTH, height=HEIGHT) as writer,
    ):
        writer.write_frames(frames(5))
        raise error
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]
    assert (tmp_path / "a.mp4").read_bytes() == b"old"


def test_full_disk(tmp_path: Path) -> None:
    """A disk that fills up is an OutputError and leaves nothing."""
    noise = np.random.default_rng(0).integers(0, 256, (40, HEIGHT, WIDTH, 3), np.uint8)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with (
            pytest.raises(OutputError, match="could not be written"),
            mp4_writer(tmp_path / "a.mp4", width=WIDTH, height=HEIGHT) as writer,
        ):
            writer.write_audio(tone(40))
            writer.write_frames(noise)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a b.mp4", "één:%05d.MP4", "http:x.mp4"])
def test_odd_names(tmp_path: Path, name: str) -> None:
    """B64: the container does not depend on the temporary name, nor on what the name looks like."""
    write(tmp_path / name, 5)
    verify_mp4(tmp_path / name, width=WIDTH, height=HEIGHT, num_frames=5)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_relative_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("a.mp4"), 5)
    assert (tmp_path / "a.mp4").stat().st_mode & 0o444


def test_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(RequestError), mp4_writer(tmp_path / "x" / "a.mp4", width=64, height=96):
        pytest.fail("opened")
    with (
        pytest.raises(OutputError, match="even"),
        mp4_writer(tmp_path / "a.mp4", width=63, height=96),
    ):
        pytest.fail("opened")


def test_truncated_file_does_not_verify(tmp_path: Path) -> None:
    write(tmp_path / "a.mp4")
    raw = (tmp_path / "a.mp4").read_bytes()
    (tmp_path / "b.mp4").write_bytes(raw[: len(raw) // 2])
    (tmp_path / "c.mp4").write_bytes(b"not a film")
    for name in "bc":
        with pytest.raises(OutputError):
            verify_mp4(tmp_path / f"{name}.mp4", width=WIDTH, height=HEIGHT, num_frames=22)


def by_hand(path: Path, *, rate: int = 32_000, layout: str = "stereo", fps: int = 24, audio_codec: str = "aac") -> None:
    """22 grey frames with silence, written by PyAV alone."""
    with av.open(str(path), "w") as box:
        video = box.add_stream("libx264", rate=fps, options={"bf": "0"})
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        audio = box.add_stream(audio_codec, rate=rate, layout=layout)
        for _ in range(22):
            box.mux(video.encode(av.VideoFrame.from_ndarray(np.full((HEIGHT, WIDTH, 3), 128, np.uint8))))
        silence = np.zeros((audio.codec_context.layout.nb_channels, rate * 22 // fps), np.float32)
        sound = av.AudioFrame.from_ndarray(silence, format="fltp", layout=layout)
        sound.sample_rate = rate
        box.mux([*video.encode(None), *audio.encode(sound), *audio.encode(None)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": 48_000}, r"audio is \('aac', 48000, 2\)"),
        ({"layout": "mono"}, r"audio is \('aac', 32000, 1\)"),
        ({"audio_codec": "libmp3lame"}, "audio is .*mp3"),
        ({"fps": 25}, "fps is 25"),
    ],
)
def test_a_file_of_other_streams_does_not_verify(tmp_path: Path, change: dict[str, object], message: str) -> None:
    by_hand(tmp_path / "right.mp4")
    verify_mp4(tmp_path / "right.mp4", width=WIDTH, height=HEIGHT, num_frames=22)
    by_hand(tmp_path / "wrong.mp4", **change)  # type: ignore[arg-type]
    with pytest.raises(OutputError, match=message):
        verify_mp4(tmp_path / "wrong.mp4", width=WIDTH, height=HEIGHT, num_frames=22)
