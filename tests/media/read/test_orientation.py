"""Interlaced videos, transparent ones and animations: one whole opaque frame after the other."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from h3serve.core.errors import MediaError
from h3serve.media.read.animation import MAX_FRAMES
from h3serve.media.read.image import load_image
from h3serve.media.read.probe import probe_media
from h3serve.media.read.video import decode_clip
from h3serve.media.sources.media_file import MediaFile
from tests.media.films import corners, quadrants

SIZE = (128, 96)
STEP = 4  # pixels that the bar moves from frame to frame


def bar(left: int) -> np.ndarray:
    """A bright bar, 16 wide, its left edge at `left`."""
    picture = np.full((SIZE[1], SIZE[0], 3), 30, np.uint8)
    picture[:, left : left + 16] = 220
    return picture


def interlaced(path: Path, codec: str, moving: int, rate: int = 24) -> MediaFile:
    """24 frames, the lower field first, as encoders write unless told otherwise; the bar moves `moving` a field."""
    options = {"libx264": {"crf": "4", "x264-params": "bff=1"}, "mpeg2video": {"g": "1"}}[codec]
    with av.open(str(path), "w") as box:
        stream = box.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = *SIZE, "yuv420p", 8_000_000
        stream.options = {**options, "flags": "+ildct+ilme"}
        for index in range(24):
            woven = bar(20 + 2 * moving * index)
            woven[::2] = bar(20 + 2 * moving * index + moving)[::2]
            frame = av.VideoFrame.from_ndarray(woven, format="rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = index, Fraction(1, rate)
            box.mux(stream.encode(frame))
        box.mux(stream.encode(None))
    return MediaFile(path)


def edges(picture: np.ndarray) -> np.ndarray:
    """Left edge of the bar in every row."""
    return (picture[..., 1] > 125).argmax(axis=1)


@pytest.mark.parametrize(("suffix", "codec"), [("mp4", "libx264"), ("ts", "mpeg2video")])
def test_fields_become_whole_frames(tmp_path: Path, suffix: str, codec: str) -> None:
    """All rows show the moment of the first field, and every frame is there at its time."""
    file = interlaced(tmp_path / f"a.{suffix}", codec, moving=2)
    frames = decode_clip(file, SIZE, 24)
    for index, frame in enumerate(frames):
        if 0 < index < 23:  # at either end there is no field before or behind
            np.testing.assert_allclose(edges(frame)[8:-8], 20 + STEP * index, atol=1)
    still = decode_clip(interlaced(tmp_path / f"b.{suffix}", codec, moving=0), SIZE, 12)
    assert np.abs(still.astype(int) - bar(20)).max(axis=(0, 1, 3))[:18].max() < 12


def test_rates_and_start_of_an_interlaced_video(tmp_path: Path) -> None:
    """25 frames a second, from 0.5 s on: frame k is the one nearest to 0.5 s + k/24."""
    file = interlaced(tmp_path / "a.mp4", "libx264", moving=2, rate=25)
    frames = decode_clip(file, SIZE, 8, start_seconds=0.48)
    expected = [20 + STEP * round(12 + k * 25 / 24) for k in range(8)]
    got = [int(np.median(edges(frame))) for frame in frames]
    np.testing.assert_allclose(got[1:], expected[1:], atol=STEP)


def pages() -> list[Image.Image]:
    first = Image.fromarray(quadrants(64, 48)).convert("RGBA")
    second = Image.new("RGBA", (64, 48), (0, 0, 255, 255))
    return [first, second, Image.new("RGBA", (64, 48), (255, 0, 0, 255))]


@pytest.mark.parametrize("form", ["gif", "webp", "png"])
def test_an_animation_is_a_video(tmp_path: Path, form: str) -> None:
    """0.5, 1 and 0.75 s: each frame for as long as it says."""
    path, how = tmp_path / f"a.{form}", {"lossless": True} if form == "webp" else {}
    first, *rest = pages()
    first.save(path, save_all=True, append_images=rest, duration=[500, 1000, 750], **how)
    file = MediaFile(path)
    probe = probe_media(file)
    assert (probe.kind, probe.width, probe.height, probe.has_audio) == ("video", 64, 48, False)
    assert probe.seconds == pytest.approx(2.25, abs=0.011)
    frames = decode_clip(file, (64, 48), 54)
    assert [corners(frame) for frame in frames] == ["rgby"] * 12 + ["bbbb"] * 24 + ["rrrr"] * 18
    late = decode_clip(file, (64, 48), 12, start_seconds=1.25)
    assert [corners(frame) for frame in late] == ["bbbb"] * 6 + ["rrrr"] * 6
    with pytest.raises(MediaError, match="more than one picture"):
        load_image(file)


@pytest.mark.parametrize("form", ["webp", "png"])
def test_a_transparent_animation_lies_over_white(tmp_path: Path, form: str) -> None:
    """0.2 of (100, 50, 0) over white is (224, 214, 204); colours under full transparency are not seen."""
    frames = [Image.new("RGBA", (64, 48), (100, 50, 0, 51)), Image.new("RGBA", (64, 48), (255, 0, 0, 0))]
    path, how = tmp_path / f"a.{form}", {"lossless": True, "exact": True} if form == "webp" else {"blend": 0}
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=500, **how)
    seen = decode_clip(MediaFile(path), (32, 24), 24)
    assert np.abs(seen[3].astype(int) - (224, 214, 204)).max() <= 1
    assert np.abs(seen[20].astype(int) - 255).max() <= 1


def test_frames_that_claim_no_time_last_a_tenth_of_a_second(tmp_path: Path) -> None:
    """As in browsers."""
    for form in ("gif", "webp"):
        first, *rest = pages()
        first.save(tmp_path / f"a.{form}", save_all=True, append_images=rest, duration=0)
        assert probe_media(MediaFile(tmp_path / f"a.{form}")).seconds == pytest.approx(0.3)


def test_a_still_of_the_same_kind_is_a_picture(tmp_path: Path) -> None:
    for form in ("gif", "webp", "png"):
        pages()[0].save(tmp_path / f"a.{form}")
        assert probe_media(MediaFile(tmp_path / f"a.{form}")).kind == "image"


def endless_gif(path: Path, frames: int) -> MediaFile:
    """One pixel, shown `frames` times for 20 ms."""
    frame = bytes.fromhex("21f9040002000000 2c0000000001000100000202440100")
    header = b"GIF89a\1\0\1\0\x80\0\0\xff\xff\xff\0\0\0"
    path.write_bytes(header + frame * frames + b";")
    return MediaFile(path)


def test_an_endless_animation_is_refused_at_once(tmp_path: Path) -> None:
    """A hostile GIF of 400,000 frames costs as little as one of 10,000."""
    assert probe_media(endless_gif(tmp_path / "a.gif", 1000)).seconds == pytest.approx(20)
    file = endless_gif(tmp_path / "b.gif", 400_000)
    with pytest.raises(MediaError, match="more than 10000 frames"):
        probe_media(file)
    with pytest.raises(MediaError, match="more than one picture"):
        load_image(file)
    assert MAX_FRAMES == 10_000
