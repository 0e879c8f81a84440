"""Reference clips: the right frame at every 1/24 s, upright and in shape, whatever the file does."""

from fractions import Fraction
from math import floor
from pathlib import Path

import av
import numpy as np
import pytest

from h3serve.core.errors import MediaError
from h3serve.media.read.frame_clock import THREADING, TICKS, frames
from h3serve.media.read.probe import probe_media
from h3serve.media.read.video import decode_clip, decode_into
from h3serve.media.sources.media_file import IngestLimits, MediaFile
from tests.media.films import corners, count, counter, counts, film, quadrants, tone

CANVAS = (64, 32)
# Degrees, horizontal and vertical mirror -> corners as seen, of stored 'rgby'.
SEEN = {
    (0, False, False): "rgby",
    (90, False, False): "gyrb",
    (180, False, False): "ybgr",
    (270, False, False): "bryg",
    (0, True, False): "gryb",
    (0, False, True): "byrg",
    (90, True, False): "ygbr",
    (90, False, True): "rbgy",
}


def on_grid(times: list[Fraction], num_frames: int, start: Fraction = Fraction(0)) -> list[int]:
    """Index of the frame nearest to each 1/24 s: the rule, written independently of the filter."""
    slots = [floor((t - start) * 24 + Fraction(1, 2)) for t in times]
    return [max((i for i, slot in enumerate(slots) if slot <= k), default=0) for k in range(num_frames)]


def steady(rate: Fraction | int, seconds: int = 2) -> list[Fraction]:
    return [i / Fraction(rate) for i in range(floor(rate * seconds))]


@pytest.mark.parametrize(
    "rate", [10, Fraction(24000, 1001), 24, 25, Fraction(30000, 1001), 30, 50, Fraction(60000, 1001), 60]
)
def test_rates(tmp_path: Path, rate: Fraction | int) -> None:
    times = steady(rate)
    file = MediaFile(film(tmp_path / "a.mp4", [counter(i) for i in range(len(times))], times, rate=rate))
    probe = probe_media(file)
    length = Fraction(len(times)) / rate
    assert probe.seconds == pytest.approx(float(length), abs=1e-4)
    assert probe.fps == pytest.approx(float(rate), rel=1e-3)
    num_frames = floor(length * 24 + Fraction(1, 2))
    assert counts(decode_clip(file, CANVAS, num_frames)) == on_grid(times, num_frames)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "mov", "ts", "avi"])
def test_containers(tmp_path: Path, suffix: str) -> None:
    """B25: containers that do not say how many frames they have are counted."""
    path = film(tmp_path / f"a.{suffix}", [counter(i) for i in range(30)], options={"crf": "8", "bf": "0"})
    probe = probe_media(MediaFile(path))
    assert probe.kind == "video"
    assert probe.seconds == pytest.approx(1.25, abs=0.02)
    assert counts(decode_clip(MediaFile(path), CANVAS, 30)) == list(range(30))


def test_variable_rate(tmp_path: Path) -> None:
    """B23: 10 fps for a second, then 30 fps: sampled by timestamp, length within a frame."""
    times = [Fraction(i, 10) for i in range(10)] + [1 + Fraction(i, 30) for i in range(30)]
    file = MediaFile(film(tmp_path / "a.mp4", [counter(i) for i in range(40)], times))
    assert probe_media(file).seconds == pytest.approx(2.0, abs=1 / 24)
    assert counts(decode_clip(file, CANVAS, 48)) == on_grid(times, 48)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_late_start_of_everything(tmp_path: Path, suffix: str) -> None:
    """B23: a film whose clock starts at 0.5 s starts at 0."""
    times = [Fraction(1, 2) + t for t in steady(24)]
    file = MediaFile(film(tmp_path / f"a.{suffix}", [counter(i) for i in range(48)], times))
    assert probe_media(file).seconds == pytest.approx(2.0, abs=0.01)
    assert counts(decode_clip(file, CANVAS, 48)) == list(range(48))


def test_picture_later_than_sound(tmp_path: Path) -> None:
    """Picture and sound stay in step: the first picture stands until its time has come."""
    times = [Fraction(1, 2) + t for t in steady(24)]
    file = MediaFile(film(tmp_path / "a.mp4", [counter(i + 1) for i in range(48)], times, sound=tone(2.5)))
    probe = probe_media(file)
    assert (probe.has_audio, probe.seconds) == (True, pytest.approx(2.5, abs=0.01))
    assert counts(decode_clip(file, CANVAS, 60)) == [1] * 12 + list(range(1, 49))


@pytest.mark.parametrize("start", [0.5, 0.51, 1.0, 2.5, 5.0, 7.9])
@pytest.mark.parametrize("rate", [24, 30])
def test_start_time(tmp_path: Path, rate: int, start: float) -> None:
    """Seeking is exact, with key frames ten seconds apart or one."""
    times = steady(rate, 8)
    for gop in ("24", "240"):
        options = {"crf": "8", "bf": "2", "g": gop}
        pictures = [counter(i) for i in range(len(times))]
        file = MediaFile(film(tmp_path / "a.mp4", pictures, times, rate=rate, options=options))
        num_frames = round((8 - start) * 24)
        expected = on_grid(times, num_frames, Fraction(start))
        assert counts(decode_clip(file, CANVAS, num_frames, start_seconds=start)) == expected


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"crf": "8", "x264-params": "open-gop=1:keyint=24:min-keyint=24:bframes=4:scenecut=0"}),
        ("libx265", {"crf": "8", "x265-params": "open-gop=1:keyint=24:min-keyint=24:bframes=4:log-level=none"}),
    ],
)
def test_start_time_with_open_groups(tmp_path: Path, codec: str, options: dict[str, str]) -> None:
    """Frames that lean on what lies before the key frame are not damage."""
    file = MediaFile(film(tmp_path / "a.mp4", [counter(i) for i in range(192)], codec=codec, options=options))
    for start in (2.5, 3.9, 6.0):
        clip = decode_clip(file, CANVAS, 24, start_seconds=start)
        assert counts(clip) == on_grid(steady(24, 8), 24, Fraction(start))


@pytest.mark.parametrize("rotation", SEEN)
def test_display_rotation(tmp_path: Path, rotation: tuple[int, bool, bool]) -> None:
    """B22: turned and mirrored clips come out as a player shows them."""
    file = MediaFile(film(tmp_path / "a.mp4", [quadrants(64, 32)] * 3, rotation=rotation))
    probe = probe_media(file)
    size = (32, 64) if rotation[0] in (90, 270) else (64, 32)
    assert (probe.width, probe.height) == size
    clip = decode_clip(file, size, 3)
    assert [corners(frame) for frame in clip] == [SEEN[rotation]] * 3


@pytest.mark.parametrize(("rotation", "size"), [(0, (128, 32)), (90, (32, 128))])
def test_pixel_aspect(tmp_path: Path, rotation: int, size: tuple[int, int]) -> None:
    film(tmp_path / "a.mp4", [quadrants(64, 32)] * 3, aspect=Fraction(2), rotation=(rotation, False, False), rate=25)
    probe = probe_media(MediaFile(tmp_path / "a.mp4"))
    assert (probe.width, probe.height) == size


@pytest.mark.parametrize("size", [(65, 33), (7, 5), (33, 64)])
def test_odd_sizes(tmp_path: Path, size: tuple[int, int]) -> None:
    """Lossless, odd in both directions, scaled up and down."""
    path = film(tmp_path / "a.mkv", [quadrants(*size)] * 3, codec="ffv1", pix_fmt="yuv420p", options={})
    probe = probe_media(MediaFile(path))
    assert (probe.width, probe.height) == size
    for canvas in (CANVAS, (8, 8), (128, 96)):
        assert corners(decode_clip(MediaFile(path), canvas, 3)[2]) == "rgby"


def test_lossless_pixels_are_exact(tmp_path: Path) -> None:
    """B29: preprocessing adds no loss of its own."""
    pixels = np.random.default_rng(3).integers(0, 256, (3, 32, 64, 3), np.uint8)
    path = film(tmp_path / "a.mkv", list(pixels), codec="ffv1", pix_fmt="bgr0", options={})
    assert np.array_equal(decode_clip(MediaFile(path), CANVAS, 3), pixels)


@pytest.mark.parametrize("colours", [1, 5])
def test_colour_matrix_of_the_file_is_used(tmp_path: Path, colours: int) -> None:
    """BT.709 and BT.601 films both show the colour that was meant."""
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as box:
        stream = box.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt, stream.options = 64, 32, "yuv420p", {"crf": "1"}
        stream.codec_context.colorspace, stream.codec_context.color_range = colours, 1
        for index in range(3):
            frame = av.VideoFrame.from_ndarray(np.full((32, 64, 3), (30, 200, 90), np.uint8), format="rgb24")
            frame = frame.reformat(format="yuv420p", dst_colorspace=colours, dst_color_range=1)
            frame.pts = index
            box.mux(stream.encode(frame))
        box.mux(stream.encode(None))
    assert np.abs(decode_clip(MediaFile(path), CANVAS, 3).astype(int) - (30, 200, 90)).max() <= 3


def test_into_memory_of_the_caller(tmp_path: Path) -> None:
    """The array may be any uint8 memory: here the middle of a larger one, the rest of which stays."""
    path = film(tmp_path / "a.mp4", [counter(i) for i in range(24)])
    memory = np.full((26, 32, 64, 3), 7, np.uint8)
    decode_into(memory[1:-1], MediaFile(path))
    assert counts(memory[1:-1]) == list(range(24))
    assert (memory[0] == 7).all()
    assert (memory[-1] == 7).all()


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    """B29: references are cut to the window; more frames than there are is an error that counts them."""
    file = MediaFile(film(tmp_path / "a.mp4", [counter(i) for i in range(24)]), "conditions[1].uri", "dance.mp4")
    assert counts(decode_clip(file, CANVAS, 5)) == [0, 1, 2, 3, 4]
    assert count(decode_clip(file, CANVAS, 25)[24]) == 23  # rounded lengths: one frame more
    with pytest.raises(MediaError, match=r"conditions\[1\].uri: 'dance.mp4' .* after 24 of the 26 frames"):
        decode_clip(file, CANVAS, 26)


def test_one_frame(tmp_path: Path) -> None:
    """B25: the shortest film there is."""
    file = MediaFile(film(tmp_path / "a.mp4", [counter(5)]))
    assert probe_media(file).seconds == pytest.approx(1 / 24, abs=1e-3)
    assert counts(decode_clip(file, CANVAS, 1)) == [5]


def damaged(path: Path, share: float) -> Path:
    """An MP4 with its index in front, cut or overwritten after `share` of its bytes."""
    raw = bytearray(path.read_bytes())
    assert raw.index(b"moov") < raw.index(b"mdat")
    cut = path.with_name("cut.mp4")
    cut.write_bytes(raw[: int(len(raw) * share)])
    return cut


def noisy(path: Path) -> Path:
    rng = np.random.default_rng(4)
    pictures = [np.maximum(counter(i), rng.integers(0, 90, (32, 64, 3), np.uint8)) for i in range(96)]
    with_index = {"crf": "8", "bf": "0", "g": "12"}
    film(path.with_suffix(".mkv"), pictures, options=with_index)
    with (
        av.open(str(path.with_suffix(".mkv"))) as box,
        av.open(str(path), "w", options={"movflags": "+faststart"}) as out,
    ):
        stream = out.add_stream_from_template(box.streams.video[0])
        for packet in box.demux(video=0):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    return path


def test_damaged_tail_matters_only_if_it_is_needed(tmp_path: Path) -> None:
    file = MediaFile(damaged(noisy(tmp_path / "a.mp4"), 0.6))
    seconds = probe_media(file).seconds
    assert 1.5 < seconds < 3  # what is there, not the four seconds of the header
    there = floor(seconds * 24)
    assert counts(decode_clip(file, CANVAS, there)) == list(range(there))
    with pytest.raises(MediaError, match="it ends or is damaged after"):
        decode_clip(file, CANVAS, 96)


def test_damaged_middle_is_refused(tmp_path: Path) -> None:
    path = noisy(tmp_path / "a.mp4")
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 2000] = bytes(2000)
    path.write_bytes(raw)
    assert counts(decode_clip(MediaFile(path), CANVAS, 24)) == list(range(24))
    with pytest.raises(MediaError, match="damaged after"):
        decode_clip(MediaFile(path), CANVAS, 96)


def test_flipped_bits_are_refused_not_smeared(tmp_path: Path) -> None:
    path = noisy(tmp_path / "a.mp4")
    raw = path.read_bytes()
    payload = raw.index(b"mdat") + 2000
    refused = 0
    for seed in range(12):
        rng, flipped = np.random.default_rng(seed), bytearray(raw)
        for place in rng.integers(payload, len(raw), 3):
            flipped[place] ^= 1 << rng.integers(8)
        path.write_bytes(flipped)
        try:
            assert counts(decode_clip(MediaFile(path), CANVAS, 96)) == list(range(96))
        except MediaError:
            refused += 1
    assert refused >= 9


@pytest.mark.parametrize("bframes", ["0", "3"])
def test_damage_in_what_the_decoder_holds_to_the_end_is_refused(tmp_path: Path, bframes: str) -> None:
    """The last frames come out of the decoder only when there are no more packets; they too must be whole."""
    rng = np.random.default_rng(4)
    pictures = [np.maximum(counter(i), rng.integers(0, 90, (32, 64, 3), np.uint8)) for i in range(48)]
    path = film(tmp_path / "a.mp4", pictures, options={"crf": "8", "bf": bframes, "b-adapt": "0"})
    with av.open(str(path)) as box:
        packets = [packet for packet in box.demux(video=0) if packet.size]
    assert counts(decode_clip(MediaFile(path), CANVAS, 48)) == list(range(48))
    raw, latest = bytearray(path.read_bytes()), max(packets, key=lambda packet: packet.pts)
    inside = latest.pos + latest.size // 3
    raw[inside : latest.pos + latest.size] = bytes(latest.pos + latest.size - inside)
    path.write_bytes(raw)
    # Lengths of containers are rounded, so that one missing frame is held for another: never the smeared one.
    assert counts(decode_clip(MediaFile(path), CANVAS, 48)) == [*range(47), 46]
    assert [round(frame.pts * 24 / TICKS) for frame in frames(MediaFile(path))] == list(range(47))


def test_damage_is_seen_in_every_run(tmp_path: Path) -> None:
    """Several slices at once hide the damage of H.264 always; several frames, in 1 of 40 runs, hence the setting."""
    rng = np.random.default_rng(4)
    pictures = [np.maximum(counter(i, 320, 192), rng.integers(0, 90, (192, 320, 3), np.uint8)) for i in range(24)]
    path = film(tmp_path / "a.mp4", pictures, options={"crf": "20", "bf": "3", "slices": "2", "threads": "2"})
    raw = bytearray(path.read_bytes())
    with av.open(str(path)) as box:
        tenth = next(packet for packet in box.demux(video=0) if packet.pts * packet.time_base * 24 == 10)
    length = tenth.size // 8
    raw[tenth.pos + length : tenth.pos + 2 * length] = rng.bytes(length)  # inside its first slice
    path.write_bytes(raw)
    assert THREADING == "NONE"
    for _ in range(3):
        assert [round(frame.pts * 24 / TICKS) for frame in frames(MediaFile(path))] == list(range(10))


def test_limits_hold_while_streaming(tmp_path: Path) -> None:
    """A small file that unpacks to much is stopped early."""
    path = film(tmp_path / "a.mp4", [counter(i) for i in range(96)])
    with pytest.raises(MediaError, match="unpacks to more than 100000 bytes"):
        decode_clip(MediaFile(path, limits=IngestLimits(max_decoded_bytes=100_000)), CANVAS, 96)
    with pytest.raises(MediaError, match="64x32 pixels, at most 2000"):
        probe_media(MediaFile(path, limits=IngestLimits(max_frame_pixels=2000)))
    with pytest.raises(MediaError, match="bytes, at most 500"):
        probe_media(MediaFile(path, limits=IngestLimits(max_file_bytes=500)))
