"""Pictures: every kind of file people have, upright and RGB, or a sentence that says why not."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from h3serve.core.errors import MediaError, RequestError
from h3serve.media.read.image import display_size, load_image, prepare_keyframe, prepare_reference_image
from h3serve.media.read.probe import probe_media
from h3serve.media.sources.media_file import IngestLimits, MediaFile
from tests.media.films import corners, quadrants

# EXIF orientation -> corners as seen, of stored 'rgby'.
SEEN = {1: "rgby", 2: "gryb", 3: "ybgr", 4: "byrg", 5: "rbgy", 6: "bryg", 7: "ygbr", 8: "gyrb"}


def save(path: Path, image: Image.Image, **how: object) -> MediaFile:
    image.save(path, **how)
    return MediaFile(path)


@pytest.mark.parametrize("orientation", SEEN)
@pytest.mark.parametrize("form", ["jpeg", "png", "webp", "tiff"])
def test_exif_orientation(tmp_path: Path, orientation: int, form: str) -> None:
    """B01: pixels, width and height are those after orientation, mirrors included."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    how = {"lossless": True} if form == "webp" else {}
    file = save(tmp_path / f"a.{form}", Image.fromarray(quadrants(64, 48)), exif=exif, **how)
    pixels = load_image(file)
    size = (48, 64) if orientation > 4 else (64, 48)
    assert (corners(pixels), pixels.shape) == (SEEN[orientation], (size[1], size[0], 3))
    assert display_size(file) == size
    probe = probe_media(file)
    assert (probe.kind, probe.width, probe.height, probe.num_bytes) == ("image", *size, file.path.stat().st_size)


@pytest.mark.parametrize("mode", ["RGBA", "L", "LA", "P", "I;16", "1"])
def test_exif_orientation_of_every_mode(tmp_path: Path, mode: str) -> None:
    """Turned by 90 degrees to the right: what was the left half is above."""
    halves = np.zeros((4, 8), np.uint8)
    halves[:, :4] = 255
    grey = Image.fromarray(halves)
    image = Image.fromarray(halves.astype(np.uint16) * 257) if mode == "I;16" else grey.convert(mode)
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = load_image(save(tmp_path / "a.png", image, exif=exif))
    assert pixels.shape == (8, 4, 3)
    assert (pixels[:4] == 255).all() and (pixels[4:] == 0).all()


def test_untagged_pixels_are_untouched(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (9, 7, 3), np.uint8)
    for form in ("png", "bmp", "tiff"):
        assert np.array_equal(load_image(save(tmp_path / f"a.{form}", Image.fromarray(pixels))), pixels)


def transparent_palette() -> Image.Image:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putdata([0, 1])
    return image


@pytest.mark.parametrize(
    ("image", "how", "expected"),
    [
        (Image.new("RGBA", (5, 8), (255, 0, 0, 255)), {}, [255, 0, 0]),
        (Image.new("RGBA", (5, 8), (255, 0, 0, 0)), {}, [255, 255, 255]),
        (Image.new("RGBA", (5, 8), (0, 0, 255, 51)), {}, [204, 204, 255]),
        (Image.new("LA", (5, 8), (0, 51)), {}, [204, 204, 204]),
        (Image.new("L", (5, 8), 77), {}, [77, 77, 77]),
        (Image.new("L", (5, 8), 77), {"transparency": 77}, [255, 255, 255]),
        (Image.new("1", (5, 8), 1), {}, [255, 255, 255]),
        (Image.fromarray(np.full((8, 5), 0x4DC3, np.uint16)), {}, [0x4D, 0x4D, 0x4D]),
        (Image.new("RGB", (1, 1), (1, 2, 3)), {}, [1, 2, 3]),
        (transparent_palette(), {}, [255, 0, 0]),
        (transparent_palette(), {"transparency": 0}, [255, 255, 255]),
    ],
    ids=lambda value: getattr(value, "mode", None),
)
def test_every_mode_becomes_rgb(tmp_path: Path, image: Image.Image, how: dict, expected: list[int]) -> None:
    """B02: alpha over white, 16 bits to 8, grey and palettes as they look; 1x1 is a picture too."""
    pixels = load_image(save(tmp_path / "a.png", image, **how))
    assert pixels.shape == (image.height, image.width, 3)
    assert pixels.dtype == np.uint8
    assert pixels[0, 0].tolist() == expected


def test_sixteen_bit_colour(tmp_path: Path) -> None:
    """16-bit RGB, which Pillow cannot write: a PNG made by FFmpeg."""
    import av

    frame = av.VideoFrame.from_ndarray(np.full((4, 6, 3), (0x1234, 0x8000, 0xFFFF), np.uint16), format="rgb48le")
    encoder = av.CodecContext.create("png", "w")
    encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = 6, 4, "rgb48be", 1
    packets = encoder.encode(frame.reformat(format="rgb48be"))
    (tmp_path / "a.png").write_bytes(b"".join(bytes(p) for p in packets + encoder.encode(None)))
    assert load_image(MediaFile(tmp_path / "a.png"))[0, 0].tolist() == [0x12, 0x80, 0xFF]


def test_cmyk(tmp_path: Path) -> None:
    """Without a profile by the plain formula; a profile that is not for CMYK does not matter."""
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for how in ({}, {"icc_profile": srgb}, {"icc_profile": b"junk"}):
        file = save(tmp_path / "a.jpg", image, quality=95, **how)
        assert np.abs(load_image(file)[8, 8].astype(int) - (255, 0, 0)).max() < 6


def test_type_comes_from_content(tmp_path: Path) -> None:
    """B13: a wrong name or none does not matter."""
    Image.fromarray(quadrants(8, 8)).save(tmp_path / "a.png")
    for name in ("a.jpg", "a.mp4", "a", "a.bin"):
        (tmp_path / "a.png").rename(tmp_path / name)
        assert probe_media(MediaFile(tmp_path / name)).kind == "image"
        assert corners(load_image(MediaFile(tmp_path / name))) == "rgby"
        (tmp_path / name).rename(tmp_path / "a.png")


def test_avif(tmp_path: Path) -> None:
    assert corners(load_image(save(tmp_path / "a", Image.fromarray(quadrants(64, 48)), format="AVIF"))) == "rgby"
    assert probe_media(MediaFile(tmp_path / "a")).kind == "image"


@pytest.mark.parametrize("name", ["a.jpg", "a.heic", "a"])
def test_heic(tmp_path: Path, name: str) -> None:
    """B12: what phones write is a picture like any other, known by its bytes whatever it is called."""
    file = save(tmp_path / name, Image.fromarray(quadrants(64, 48)), format="HEIF", quality=90)
    assert (corners(load_image(file)), probe_media(file).kind, display_size(file)) == ("rgby", "image", (64, 48))
    file.path.write_bytes(file.path.read_bytes()[:200])
    for look in (load_image, probe_media):
        with pytest.raises(MediaError, match="damaged"):
            look(file)


def tiff(path: Path, samples: np.ndarray, **tags: int) -> MediaFile:
    """An uncompressed grey TIFF of [h, w] samples, written out byte by byte (TIFF 6.0); tags: bits, polarity, form."""
    height, width = samples.shape
    bits = tags.get("bits", 16)
    if bits == 12:  # two samples in three bytes
        pairs = samples.reshape(-1, 2).astype(int)
        packed = [(a >> 4, (a & 15) << 4 | b >> 8, b & 255) for a, b in pairs]
        data = bytes(value for three in packed for value in three)
    else:
        data = samples.astype(f"<{'i' if tags.get('form') == 2 else 'u'}{bits // 8}").tobytes()
    entries = [(256, width), (257, height), (258, bits), (259, 1), (262, tags.get("polarity", 1)), (273, 8)]
    entries += [(277, 1), (278, height), (279, len(data))]
    entries += [(339, tags["form"])] if "form" in tags else []
    table = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    place = 8 + len(data)
    path.write_bytes(b"II*\0" + struct.pack("<I", place) + data + struct.pack("<H", len(entries)) + table + bytes(4))
    return MediaFile(path)


@pytest.mark.parametrize(
    ("tags", "sample", "expected"),
    [
        ({"bits": 12}, 0xABC, 0xAB),
        ({"bits": 16}, 0xABCD, 0xAB),
        ({"bits": 16, "polarity": 0}, 0xABCD, 255 - 0xAB),
        ({"bits": 8, "polarity": 0}, 0xAB, 255 - 0xAB),
    ],
)
def test_grey_tiff_of_any_depth(tmp_path: Path, tags: dict[str, int], sample: int, expected: int) -> None:
    """12 bits are not dark, and where 0 is white it stays white."""
    pixels = load_image(tiff(tmp_path / "a.tif", np.full((4, 6), sample), **tags))
    assert pixels.shape == (4, 6, 3) and (pixels == expected).all()


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_signed_tiff_is_called_signed(tmp_path: Path, bits: int) -> None:
    file = tiff(tmp_path / "a.tif", np.full((4, 4), -5), bits=bits, form=2)
    for look in (load_image, probe_media):
        with pytest.raises(MediaError, match="signed numbers"):
            look(file)
    with pytest.raises(MediaError, match="32 bits per sample"):
        probe_media(tiff(tmp_path / "b.tif", np.full((4, 4), 5), bits=32))


def deep_png(path: Path, samples: np.ndarray, key: tuple[int, ...]) -> MediaFile:
    """A 16-bit PNG of [h, w, 1 or 3] samples with a transparent key, chunk by chunk (PNG 11.2, 11.3.1.1)."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width, channels = samples.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    header = struct.pack(">IIBBBBB", width, height, 16, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"tRNS", struct.pack(f">{channels}H", *key))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    return MediaFile(path)


@pytest.mark.parametrize("key", [(0x1234,), (0x1234, 0x5678, 0x9ABC)])
def test_transparent_key_of_a_16_bit_png(tmp_path: Path, key: tuple[int, ...]) -> None:
    """All 16 bits have to agree: a colour that differs in its lowest bit is seen."""
    samples = np.full((2, 3, len(key)), key)
    samples[0, 0, -1] += 1
    pixels = load_image(deep_png(tmp_path / "a.png", samples, key))
    seen = [value >> 8 for value in key] * (3 // len(key))
    assert pixels[0, 0].tolist() == seen
    assert (pixels.reshape(-1, 3)[1:] == 255).all()


@pytest.mark.parametrize("transfer", [1, 13, 16, 18])
def test_hdr_pictures_are_refused(tmp_path: Path, transfer: int) -> None:
    """PQ is 16 and HLG 18 in ITU-T H.273; shown as they are, they would be pale."""
    plain = save(tmp_path / "a.png", Image.new("RGB", (4, 4))).path.read_bytes()
    data = b"cICP" + bytes([9, transfer, 0, 1])
    (tmp_path / "b.png").write_bytes(plain[:33] + b"\0\0\0\4" + data + struct.pack(">I", zlib.crc32(data)) + plain[33:])
    image = Image.new("RGB", (64, 64))
    heif = tmp_path / "a.heic"
    image.save(heif, format="HEIF", matrix_coefficients=9, color_primaries=9, transfer_characteristics=transfer)
    avif = save(tmp_path / "a.avif", image, format="AVIF").path
    raw = avif.read_bytes()
    at = raw.index(b"colrnclx") + 10
    avif.write_bytes(raw[:at] + struct.pack(">H", transfer) + raw[at + 2 :])
    for path in (tmp_path / "b.png", heif, avif):
        if transfer in (16, 18):
            with pytest.raises(MediaError, match="HDR picture"):
                probe_media(MediaFile(path))
        else:
            assert load_image(MediaFile(path)).shape[2] == 3


def test_limits_hold_before_decoding(tmp_path: Path) -> None:
    """A small file that claims a huge picture is refused by its header."""
    file = save(tmp_path / "a.png", Image.new("1", (1, 1)))
    raw = bytearray(file.path.read_bytes())
    raw[16:24] = struct.pack(">II", 30_000, 30_000)  # width and height, in the chunk that begins at byte 12
    raw[29:33] = struct.pack(">I", zlib.crc32(raw[12:29]))
    file.path.write_bytes(raw)
    for look in (load_image, probe_media):
        with pytest.raises(MediaError, match="pixels, at most|too many pixels"):
            look(file)
    small = save(tmp_path / "b.png", Image.new("L", (10, 11)))
    with pytest.raises(MediaError, match="10x11 pixels, at most 100"):
        load_image(MediaFile(small.path, limits=IngestLimits(max_picture_pixels=100)))
    with pytest.raises(MediaError, match="bytes, at most 10"):
        load_image(MediaFile(small.path, limits=IngestLimits(max_file_bytes=10)))


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_several_pictures_in_one_file_are_refused(tmp_path: Path, form: str) -> None:
    pages = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    file = save(tmp_path / "a", pages[0], format=form, save_all=True, append_images=pages[1:])
    with pytest.raises(MediaError, match="more than one picture"):
        load_image(file)


def test_camera_jpeg_with_a_preview(tmp_path: Path) -> None:
    """MPO: a JPEG with a second picture behind it, which phones and cameras write; the first counts."""
    pages = [Image.fromarray(quadrants(64, 48)), Image.new("RGB", (8, 8))]
    file = save(tmp_path / "a.jpg", pages[0], format="MPO", save_all=True, append_images=pages[1:])
    assert corners(load_image(file)) == "rgby"


@pytest.mark.parametrize("content", [b"", b"hello", b"BM", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"<svg/>"])
def test_not_a_picture(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(MediaError, match=r"^conditions\[0\].uri: 'mine.png' is not usable: "):
        load_image(MediaFile(tmp_path / "a.png", "conditions[0].uri", "mine.png"))


def test_truncated_picture(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(quadrants(64, 48)).save(buffer, "JPEG")
    (tmp_path / "a.jpg").write_bytes(buffer.getvalue()[:-200])
    with pytest.raises(MediaError, match="damaged"):
        load_image(MediaFile(tmp_path / "a.jpg"))


def test_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.png", tmp_path):
        with pytest.raises(MediaError, match="no such file"):
            probe_media(MediaFile(path))


def disc(width: int, height: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    inside = (x - width / 2 + 0.5) ** 2 + (y - height / 2 + 0.5) ** 2 < (min(width, height) * 0.4) ** 2
    return np.where(inside[..., None], 255, 0).astype(np.uint8).repeat(3, axis=2)


def extent(pixels: np.ndarray) -> tuple[int, int]:
    lit = pixels[..., 0] > 127
    return int(lit.any(axis=0).sum()), int(lit.any(axis=1).sum())


def test_first_keyframe_is_stretched_second_is_cropped() -> None:
    """B04: the two geometries of the release, and nothing moves when the picture already fits."""
    picture, canvas = disc(300, 400), (224, 128)
    stretched = prepare_keyframe(picture, canvas, first=True)
    covered = prepare_keyframe(picture, canvas, first=False)
    assert stretched.shape == covered.shape == (128, 224, 3)
    assert extent(stretched) == pytest.approx((240 * 224 / 300, 240 * 128 / 400), abs=2)
    wide, tall = extent(covered)  # 240 · 224/300 = 179 wide, higher than the canvas
    assert (wide, tall) == (pytest.approx(179, abs=2), 128)
    fitting = disc(224, 128)
    for first in (True, False):
        assert prepare_keyframe(fitting, canvas, first=first) is fitting or np.array_equal(
            prepare_keyframe(fitting, canvas, first=first), fitting
        )


@pytest.mark.parametrize(
    ("size", "canvas"),
    [((37, 91), (96, 64)), ((91, 37), (96, 64)), ((37, 92), (96, 64)), ((92, 37), (96, 64)), ((50, 50), (64, 96))],
)
def test_cover_crop_numbers(size: tuple[int, int], canvas: tuple[int, int]) -> None:
    """Scale max(cw/w, ch/h), sides rounded but never below the canvas, crop at floor((resized - c)/2)."""
    picture = np.random.default_rng(2).integers(0, 256, (size[1], size[0], 3), np.uint8)
    scale = max(canvas[0] / size[0], canvas[1] / size[1])
    big = [max(c, round(side * scale)) for c, side in zip(canvas, size, strict=True)]
    left, top = (big[0] - canvas[0]) // 2, (big[1] - canvas[1]) // 2
    resized = Image.fromarray(picture).resize(big, Image.Resampling.LANCZOS)
    expected = np.asarray(resized.crop((left, top, left + canvas[0], top + canvas[1])))
    assert np.array_equal(prepare_keyframe(picture, canvas, first=False), expected)


@pytest.mark.parametrize(
    ("size", "mode", "expected"),
    [
        ((64, 64), "diffusers", (2048, 2048)),
        ((1920, 1080), "diffusers", (3648, 2048)),
        ((64, 64), "max", (64, 64)),
        ((320, 240), "match", (160, 128)),
    ],
)
def test_reference_pictures(size: tuple[int, int], mode: str, expected: tuple[int, int]) -> None:
    picture = np.zeros((size[1], size[0], 3), np.uint8)
    assert prepare_reference_image(picture, mode, (160, 128)).shape == (expected[1], expected[0], 3)


def test_reference_picture_that_is_too_long() -> None:
    with pytest.raises(RequestError, match=r"conditions\[1\]: '10x1' .* 1:4 to 4:1"):
        prepare_reference_image(np.zeros((1, 10, 3), np.uint8), "diffusers", (64, 64), field="conditions[1]")
