"""What a written MP4 holds, read by other means than wrote it: its boxes, its planes, its channels, its bytes."""

import hashlib
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import numpy as np
import pytest

from h3serve.core.geometry import audio_latents
from h3serve.media.write import mp4_writer as writer_module
from h3serve.media.write.mp4_writer import mp4_writer

NESTED = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts"}
LENGTHS = range(107, 363, 17)  # every 17n+5 from 4 to 15 seconds


def boxes(raw: bytes, kind: str) -> Iterator[bytes]:
    """The content of every box `kind`, in the order of the file (ISO/IEC 14496-12, 4.2)."""
    place = 0
    while place < len(raw):
        size, name = struct.unpack_from(">I4s", raw, place)
        inside = raw[place + 8 : place + size]
        if name == kind.encode():
            yield inside
        elif name in NESTED:
            yield from boxes(inside, kind)
        place += size


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def sound(samples: int, left: float = 440.0, right: float = 1000.0) -> np.ndarray:
    """Another tone in each channel."""
    time = np.arange(samples) / 32_000
    return (0.2 * np.stack([np.sin(2 * np.pi * left * time), np.sin(2 * np.pi * right * time)])).astype(np.float32)


def written(path: Path, frames: np.ndarray, wave: np.ndarray | None = None) -> bytes:
    _, height, width, _ = frames.shape
    with mp4_writer(path, width=width, height=height, num_frames=len(frames)) as writer:
        writer.write_audio(sound(audio_latents(len(frames)) * 800) if wave is None else wave)
        writer.write_frames(frames)
    return path.read_bytes()


@pytest.mark.parametrize("count", LENGTHS)
def test_every_length_is_exact_in_every_box(tmp_path: Path, count: int) -> None:
    """The sound comes in whole latents, up to 8.3 ms longer or shorter: the file lasts frames/24 s all the same."""
    raw = written(tmp_path / "a.mp4", np.zeros((count, 16, 16, 3), np.uint8))
    (movie,) = boxes(raw, "mvhd")
    clock, length = struct.unpack_from(">II", movie, 12)
    assert (clock, length) == (96_000, count * 4000)
    tracks = [struct.unpack_from(">I", box, 20)[0] for box in boxes(raw, "tkhd")]
    assert tracks[0] == count * 4000 and count * 4000 - 800 - 3 <= tracks[1] <= count * 4000
    media = [struct.unpack_from(">II", box, 12) for box in boxes(raw, "mdhd")]
    assert media[0][1] * 24 == media[0][0] * count
    samples = min(audio_latents(count) * 800, count * 32_000 // 24)
    assert media[1] == (32_000, 1024 + samples)  # one packet of the encoder's run-in
    edits = [struct.unpack_from(">IIiI", box, 4) for box in boxes(raw, "elst")]
    # One edit each, from the first picture and the first sample on, at normal speed.
    assert [edit[0] for edit in edits] == [1, 1] and [edit[3] for edit in edits] == [0x10000, 0x10000]
    assert [edit[1] for edit in edits] == tracks and edits[1][2] == 1024
    stts = next(boxes(raw, "stts"))
    runs = [struct.unpack_from(">II", stts, 8 + 8 * i) for i in range(struct.unpack_from(">I", stts, 4)[0])]
    assert sum(n for n, _ in runs) == count and {step * 24 for _, step in runs} == {media[0][0]}


def test_left_is_left_and_right_is_right(tmp_path: Path) -> None:
    written(tmp_path / "a.mp4", np.zeros((24, 16, 16, 3), np.uint8), sound(32_000))
    with av.open(str(tmp_path / "a.mp4")) as box:
        assert box.streams.audio[0].codec_context.layout.name == "stereo"
        decoded = np.concatenate([frame.to_ndarray() for frame in box.decode(audio=0)], axis=1)[:, :32_000]
    hertz = np.abs(np.fft.rfft(decoded, axis=1)).argmax(axis=1)
    assert hertz.tolist() == [440, 1000]


def test_each_picture_is_at_its_place(tmp_path: Path) -> None:
    """Each frame carries its number as eight squares, black or white."""
    bits = (np.arange(124)[:, None] >> np.arange(8)) & 1
    frames = np.repeat((bits * 255).astype(np.uint8), 16, axis=1)[:, None, :, None] * np.ones((1, 16, 1, 3), np.uint8)
    written(tmp_path / "a.mp4", frames)
    with av.open(str(tmp_path / "a.mp4")) as box:
        decoded = np.stack([frame.to_ndarray(format="gray") for frame in box.decode(video=0)])
    seen = (decoded[:, 4:12].mean(1).reshape(-1, 8, 16).mean(2) > 128).astype(int)
    assert (seen @ (1 << np.arange(8))).tolist() == list(range(124))


@pytest.mark.parametrize("colour", [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (200, 120, 40)])
def test_colours_are_those_of_the_tags(tmp_path: Path, colour: tuple[int, int, int]) -> None:
    """The planes hold what ITU-R BT.709 says, 3.2 to 3.5 and 4.6, in the narrow range: no BGR, no BT.601."""
    written(tmp_path / "a.mp4", np.full((2, 32, 32, 3), colour, np.uint8))
    red, green, blue = (value / 255 for value in colour)
    luma = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    wanted = (16 + 219 * luma, 128 + 224 * (blue - luma) / 1.8556, 128 + 224 * (red - luma) / 1.5748)
    with av.open(str(tmp_path / "a.mp4")) as box:
        planes = next(box.decode(video=0)).to_ndarray()
    got = planes[:32].mean(), planes[32:40].mean(), planes[40:].mean()
    assert np.abs(np.subtract(got, wanted)).max() <= 1.5


def moving(count: int, height: int, width: int) -> np.ndarray:
    """Smooth texture that moves, with grain."""
    rng = np.random.default_rng(7)
    wide = rng.standard_normal((height, width + count, 3)).cumsum(0).cumsum(1) * 4 + 120
    steps = [wide[:, i : i + width] + rng.standard_normal((height, width, 1)) * 2 for i in range(count)]
    return np.stack(steps).clip(0, 255).astype(np.uint8)


def digest(frames: np.ndarray) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return hashlib.sha256(written(Path(folder) / "a.mp4", frames)).hexdigest()


def test_equal_frames_make_equal_files(tmp_path: Path) -> None:
    """50 writes, several at once: x264's AVX-512 code once made 11 files of 30, in frames as narrow as these."""
    frames = moving(60, 96, 64)
    with ThreadPoolExecutor(3) as pool:
        assert len(set(pool.map(digest, [frames] * 50))) == 1


def test_the_number_of_cores_changes_nothing() -> None:
    """x264 left alone takes threads by the cores it may use, and makes other files with them."""
    frames = "tests.media.test_mp4", "moving(24, 416, 64)"
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    program += f"from {frames[0]} import digest, moving; print(digest({frames[1]}))"
    one = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert one.stdout.strip() == digest(moving(24, 416, 64))


@pytest.mark.parametrize(("cpu", "options"), [("fma avx2 avx512f", {"x264-params": "asm=AVX2"}), ("fma avx2", {})])
def test_avx512_is_not_used(monkeypatch: pytest.MonkeyPatch, cpu: str, options: dict[str, str]) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: f"flags\t\t: fpu {cpu}\n")
    assert writer_module._steady.__wrapped__() == options


def test_x264_says_itself_what_it_uses(tmp_path: Path) -> None:
    """On a processor with AVX-512 and on one without."""
    av.logging.set_level(av.logging.VERBOSE)
    try:
        with av.logging.Capture(local=False) as lines:
            written(tmp_path / "a.mp4", noise((5, 416, 64, 3)))
    finally:
        av.logging.set_level(None)
    (used,) = [text for _, name, text in lines if name == "libx264" and "cpu capabilities" in text]
    assert "AVX512" not in used
    assert any("threads=8 " in text for _, name, text in lines if name == "libx264")
