"""200 damaged files: each is used or refused within seconds, and nothing stays behind."""

import base64
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from h3serve.core.errors import MediaError
from h3serve.media.read.image import load_image
from h3serve.media.read.probe import probe_media
from h3serve.media.read.video import decode_clip
from h3serve.media.sources.media_file import IngestLimits, MediaFile, SourcePolicy
from h3serve.media.sources.open_source import open_source
from tests.media.films import counter, film, quadrants, tone

FORMS = ("png", "jpg", "webp", "gif", "tiff", "bmp", "avif", "mp4", "mkv", "ts", "avi", "wav", "flac")
NUM_FILES = 200
# Small, so that a header that lies about its size meets them.
LIMITS = IngestLimits(max_file_bytes=10**6, max_picture_pixels=10**6, max_frame_pixels=10**6, max_decoded_bytes=10**8)


def seed_file(folder: Path, form: str) -> bytes:
    path = folder / f"seed.{form}"
    if form in FORMS[:7]:
        exif = Image.Exif()
        exif[0x0112] = 6
        how = {"exif": exif} if form not in ("gif", "bmp") else {}
        Image.fromarray(quadrants(32, 24)).save(path, **how)
    elif form in ("wav", "flac"):
        save_sound(path)
    else:
        options = {"crf": "20", "bf": "0", "g": "6"}
        film(path, [counter(i) for i in range(24)], sound=tone(0.5) if form == "mp4" else None, options=options)
    return path.read_bytes()


def save_sound(path: Path) -> None:
    import av

    with av.open(str(path), "w") as box:
        stream = box.add_stream({"wav": "pcm_s16le", "flac": "flac"}[path.suffix[1:]], rate=32_000, layout="stereo")
        wave = np.ascontiguousarray((tone(0.5).T * 32767).astype(np.int16)).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(wave, "s16", "stereo")
        frame.sample_rate = 32_000
        box.mux(stream.encode(frame))
        box.mux(stream.encode(None))


def truncate(raw: bytes, rng: np.random.Generator) -> bytes:
    return raw[: rng.integers(1, len(raw))]


def flip_bits(raw: bytes, rng: np.random.Generator) -> bytes:
    out = bytearray(raw)
    for place in rng.integers(0, len(raw), rng.integers(1, 30)):
        out[place] ^= 1 << rng.integers(8)
    return bytes(out)


def overwrite_header(raw: bytes, rng: np.random.Generator) -> bytes:
    length = int(rng.integers(1, 64))
    return rng.bytes(length) + raw[length:]


def extreme_numbers(raw: bytes, rng: np.random.Generator) -> bytes:
    """Four bytes of all ones or zeros in the first kilobyte or the last: sizes, counts, offsets."""
    out = bytearray(raw)
    for _ in range(3):
        near = int(rng.integers(0, min(1024, len(raw) - 4)))
        place = near if rng.integers(2) else len(raw) - 4 - near
        out[place : place + 4] = bytes([255 if rng.integers(2) else 0]) * 4
    return bytes(out)


def swap_blocks(raw: bytes, rng: np.random.Generator) -> bytes:
    a, b, c = sorted(int(x) for x in rng.integers(0, len(raw), 3))
    return raw[:a] + raw[b:c] + raw[a:b] + raw[c:]


MUTATIONS: list[Callable[[bytes, np.random.Generator], bytes]] = [
    *(truncate, flip_bits, overwrite_header, extreme_numbers, swap_blocks)
]


def use(file: MediaFile) -> str:
    probe = probe_media(file)
    if probe.kind == "image":
        assert load_image(file).shape == (probe.height, probe.width, 3)
    elif probe.kind == "video":
        assert probe.width > 0 and probe.height > 0
        decode_clip(file, (32, 16), 24)
        decode_clip(file, (32, 16), 6, start_seconds=0.5)
    return probe.kind


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("seeds")
    return {form: seed_file(folder, form) for form in FORMS}


def test_seeds_are_good(seeds: dict[str, bytes]) -> None:
    for form, raw in seeds.items():
        with open_source(f"base64://{base64.b64encode(raw).decode()}", SourcePolicy(limits=LIMITS)) as file:
            kind = "image" if form in FORMS[:7] else "audio" if form in ("wav", "flac") else "video"
            assert use(file) == kind, form


@pytest.mark.timeout(120)
@pytest.mark.parametrize("form", FORMS)
def test_mutated_files(tmp_path: Path, seeds: dict[str, bytes], form: str) -> None:
    policy, outcomes = SourcePolicy(temp_folder=tmp_path, limits=LIMITS), {"used": 0, "refused": 0}
    for number in range(-(-NUM_FILES // len(FORMS))):
        rng = np.random.default_rng([FORMS.index(form), number])
        raw = MUTATIONS[number % len(MUTATIONS)](seeds[form], rng)
        begun = time.monotonic()
        try:
            with open_source(f"base64://{base64.b64encode(raw).decode()}", policy, field="conditions[0].uri") as file:
                use(file)
            outcomes["used"] += 1
        except MediaError as error:
            assert str(error).startswith("conditions[0].uri: 'base64: uri of ")
            assert str(tmp_path) not in str(error)
            outcomes["refused"] += 1
        assert time.monotonic() - begun < 10
        assert list(tmp_path.iterdir()) == []
    assert outcomes["refused"] > 0


def test_junk_of_every_length(tmp_path: Path) -> None:
    """Nothing but noise, with and without a known beginning."""
    rng = np.random.default_rng(9)
    beginnings = (
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"RIFF\xff\xff\xff\xffWEBP",
        b"\0\0\0\x18ftypmp42",
        b"fLaC",
    )
    for begin in beginnings:
        for length in (1, 40, 5000):
            (tmp_path / "a").write_bytes(begin + rng.bytes(length))
            with pytest.raises(MediaError):
                use(MediaFile(tmp_path / "a", limits=LIMITS))
