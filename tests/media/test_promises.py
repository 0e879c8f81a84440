"""What `probe_media` accepts, decoding makes, or says that data are damaged: nobody waits in a queue to be refused."""

import struct
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from h3serve.core.errors import MediaError
from h3serve.media.read.audio import load_audio
from h3serve.media.read.image import load_image
from h3serve.media.read.probe import probe_media
from h3serve.media.read.video import decode_clip
from h3serve.media.sources.media_file import IngestLimits, MediaFile
from tests.media.films import counter, film, quadrants, tone
from tests.media.sounds import record
from tests.media.test_mutated import MUTATIONS

LIMITS = IngestLimits(max_file_bytes=10**6, max_picture_pixels=10**6, max_frame_pixels=10**6, max_decoded_bytes=10**8)
# All that decoding may still find out, in the words of its errors: what only the data tell.
ONLY_THE_DATA_TELL = "damaged|cannot be read|changes|not numbers|unpacks to more"


def use(file: MediaFile) -> str:
    """Everything that a worker would do with a reference of up to 3 s; the kind, or why the probe refuses it."""
    try:
        probe = probe_media(file)
    except MediaError as error:
        return f"refused: {error.allowed}"
    try:
        if probe.kind == "image":
            load_image(file)
        for start in (0.0, probe.seconds / 2):
            frames = min(72, round((probe.seconds - start) * 24))
            if probe.kind == "video" and frames > 0:
                assert len(decode_clip(file, (32, 16), frames, start_seconds=start)) == frames
            heard = min(probe.audio_seconds - start, 3.0)
            if probe.has_audio and heard > 0.01:
                load_audio(file, heard, start_seconds=start, soundtrack=probe.kind == "video")
    except MediaError as error:
        assert any(word in error.allowed for word in ONLY_THE_DATA_TELL.split("|")), error.allowed
        return "damaged"
    return probe.kind


def wav(rate: int, channels: int = 1, bits: int = 16, code: int = 1, seconds: float = 2.5) -> bytes:
    frame = channels * bits // 8
    data = bytes(range(256)) * (1 + int(min(rate, 200_000) * seconds * frame) // 256)
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, code, channels, rate, rate * frame % 2**32, frame, bits)
    return b"RIFF" + struct.pack("<I", 28 + len(data)) + b"WAVE" + head + struct.pack("<4sI", b"data", len(data)) + data


def patched(raw: bytes, box: bytes, offset: int, values: list[int]) -> Iterator[bytes]:
    """`raw` with the 32-bit number at `offset` in each `box` replaced by each of `values`."""
    at = raw.find(box)
    while at >= 0:
        for value in values:
            out = bytearray(raw)
            struct.pack_into(">I", out, at + offset, value)
            yield bytes(out)
        at = raw.find(box, at + 1)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder, options = tmp_path_factory.mktemp("good"), {"crf": "20", "bf": "2", "g": "12"}
    pictures = [counter(i) for i in range(48)]
    out = {}
    for suffix in ("mp4", "mkv", "ts", "flv"):
        out[suffix] = film(folder / f"a.{suffix}", pictures, sound=tone(2.0), options=options).read_bytes()
    out["avi"] = film(folder / "a.avi", pictures, codec="mpeg4", options={}).read_bytes()
    times = [Fraction(i if i < 20 else i + 8, 24) for i in range(40)]
    out["gaps.avi"] = film(folder / "g.avi", pictures[:40], times, codec="mpeg4", options={}).read_bytes()
    for suffix, codec in (("m4a", "aac"), ("flac", "flac"), ("ogg", "libopus"), ("mp3", "libmp3lame"), ("aac", "aac")):
        out[suffix] = record(folder / f"s.{suffix}", tone(2.0), 48_000, codec).read_bytes()
    import PIL.Image as Image

    first, second = Image.fromarray(quadrants(32, 24)), Image.new("RGB", (32, 24), "red")
    for suffix in ("gif", "webp", "png"):
        first.save(folder / f"m.{suffix}", save_all=True, append_images=[second], duration=600)
        out[f"moving.{suffix}"] = (folder / f"m.{suffix}").read_bytes()
    return out


def test_good_files_are_used(tmp_path: Path, good: dict[str, bytes]) -> None:
    for name, raw in good.items():
        (tmp_path / "a").write_bytes(raw)
        sound = name in ("m4a", "flac", "ogg", "mp3", "aac")
        assert use(MediaFile(tmp_path / "a", limits=LIMITS)) == ("audio" if sound else "video"), name


@pytest.mark.parametrize("rate", [0, 1, 2, 500, 999, 1_000, 8_000, 768_000, 768_001, 2**31 - 1, 2**32 - 1])
def test_wav_of_any_rate(tmp_path: Path, rate: int) -> None:
    """1 kHz to 768 kHz are taken; what is not is refused by the probe."""
    (tmp_path / "a.wav").write_bytes(wav(rate))
    outcome = use(MediaFile(tmp_path / "a.wav"))
    assert (outcome == "audio") == (1_000 <= rate <= 768_000), outcome
    assert outcome != "damaged"


@pytest.mark.parametrize(("channels", "bits"), [(0, 16), (9, 16), (64, 8), (255, 8), (1, 4), (1, 7), (2, 64)])
def test_wav_of_any_form(tmp_path: Path, channels: int, bits: int) -> None:
    for code in (1, 3, 6, 0x55, 0xFFFF):
        (tmp_path / "a.wav").write_bytes(wav(8_000, channels, bits, code))
        use(MediaFile(tmp_path / "a.wav", limits=LIMITS))


@pytest.mark.parametrize("box", [b"mvhd", b"mdhd", b"tkhd"])
def test_mp4_of_any_time_scale(tmp_path: Path, good: dict[str, bytes], box: bytes) -> None:
    for raw in patched(good["mp4"], box, 16, [0, 1, 2, 10, 24, 2**31 - 1, 2**32 - 1]):
        (tmp_path / "a.mp4").write_bytes(raw)
        assert use(MediaFile(tmp_path / "a.mp4", limits=LIMITS)) != "damaged"


@pytest.mark.parametrize("scale", [0, 1])
def test_mp4_with_a_clock_of_seconds_is_refused_by_the_probe(
    tmp_path: Path, good: dict[str, bytes], scale: int
) -> None:
    for raw in patched(good["mp4"], b"mdhd", 16, [scale]):
        (tmp_path / "a.mp4").write_bytes(raw)
        with pytest.raises(MediaError, match="contradicts itself"):
            probe_media(MediaFile(tmp_path / "a.mp4"))


@pytest.mark.parametrize("box", [b"elst", b"stts", b"ctts", b"stsc", b"stss", b"stsz", b"trun"])
def test_mp4_with_odd_tables(tmp_path: Path, good: dict[str, bytes], box: bytes) -> None:
    for offset in (8, 12, 16, 20):
        for raw in patched(good["mp4"], box, offset, [0, 1, 2**31 - 1, 2**32 - 1]):
            (tmp_path / "a.mp4").write_bytes(raw)
            use(MediaFile(tmp_path / "a.mp4", limits=LIMITS))


@pytest.mark.timeout(200)
@pytest.mark.parametrize("number", range(12))
def test_mutated_files_keep_the_promise(tmp_path: Path, good: dict[str, bytes], number: int) -> None:
    for place, (name, raw) in enumerate(good.items()):
        rng = np.random.default_rng([place, number])
        (tmp_path / "a").write_bytes(MUTATIONS[number % len(MUTATIONS)](raw, rng))
        assert use(MediaFile(tmp_path / "a", limits=LIMITS)), name


@pytest.mark.parametrize("flags", ["frag_keyframe+empty_moov", "frag_keyframe", "frag_keyframe+default_base_moof"])
def test_fragmented_mp4(tmp_path: Path, good: dict[str, bytes], flags: str) -> None:
    (tmp_path / "a.mp4").write_bytes(good["mp4"])
    with (
        av.open(str(tmp_path / "a.mp4")) as box,
        av.open(str(tmp_path / "b.mp4"), "w", options={"movflags": flags}) as out,
    ):
        copies = {s.index: out.add_stream_from_template(s) for s in box.streams}
        for packet in box.demux():
            if packet.size:
                packet.stream = copies[packet.stream.index]
                out.mux(packet)
    probe = probe_media(MediaFile(tmp_path / "b.mp4"))
    assert probe.seconds == pytest.approx(2.0, abs=0.1)  # the two frames of delay are not taken back in all forms
    assert use(MediaFile(tmp_path / "b.mp4")) == "video"
