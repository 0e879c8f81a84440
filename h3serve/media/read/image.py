"""Pictures: from any file a person has to uint8 RGB, and to the sizes the model wants.

What a picture is is read from its bytes, never from its name. To RGB by these rules: EXIF orientation
first; transparency over white; 16 bits to the upper 8; CMYK through its own colour profile where it has
one; grey and palettes as they look. Animations and multi-page files are refused.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import av
import numpy as np
import numpy.typing as npt
import PIL.AvifImagePlugin  # Pillow knows these three only once they are imported
import PIL.TiffImagePlugin
import PIL.WebPImagePlugin  # noqa: F401
import pillow_heif
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from h3serve.core.geometry import RELEASED_SIZES, Size, SizeRules, check_ratio, reference_image_size
from h3serve.media.sources.media_file import MediaFile

Pixels = npt.NDArray[np.uint8]

FORMATS = ["JPEG", "PNG", "WEBP", "AVIF", "HEIF", "GIF", "BMP", "TIFF"]
ALLOWED = "a picture must be JPEG, PNG, WEBP, AVIF, HEIC, GIF, BMP or TIFF"
pillow_heif.register_heif_opener()
HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_ORIENTATION = 0x0112
_BITS, _POLARITY, _NUMBERS = 0x0102, 0x0106, 0x0153  # tags of TIFF: bits a sample, whether 0 is white, signed or not
# Cameras add a preview or a depth map as a second picture to these; the first one is the photograph.
_FIRST_OF_MANY = {"MPO", "HEIF"}
_ANIMATIONS = {"GIF", "WEBP", "PNG"}


def load_image(file: MediaFile) -> Pixels:
    """The picture upright, uint8 [H, W, 3]. Raises MediaError for what cannot be used, before decoding if possible."""
    with open_image(file) as image:
        image.load()
        rgb = _to_rgb(image, file)
        rgb.getexif()[_ORIENTATION] = image.getexif().get(_ORIENTATION, 1)
        return np.asarray(ImageOps.exif_transpose(rgb))


def display_size(file: MediaFile) -> Size:
    """(width, height) after EXIF orientation, from the header alone."""
    with open_image(file) as image:
        turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
        # Pillow has already turned the size of a TIFF.
        swap = turned and image.format != "TIFF"
        return (image.height, image.width) if swap else (image.width, image.height)


@contextmanager
def open_image(file: MediaFile, *, moving: bool = False) -> Iterator[Image.Image]:
    """The picture opened but not decoded, its pixel count checked; decoder failures become MediaErrors.

    More than one picture in a file is refused unless `moving` says that all are meant.
    """
    file.check_size()
    try:
        with Image.open(file.path, formats=FORMATS) as image:
            if image.width * image.height > file.limits.max_picture_pixels:
                limit = file.limits.max_picture_pixels
                raise file.error(f"it has {image.width}x{image.height} pixels, at most {limit} are taken")
            if not moving and _has_more(image):
                raise file.error("it holds more than one picture; save the one that is meant")
            _check_samples(image, file)
            yield image
    except UnidentifiedImageError as error:
        raise file.error(_why_unknown(file)) from error
    except Image.DecompressionBombError as error:
        raise file.error(f"it has too many pixels, at most {file.limits.max_picture_pixels} are taken") from error
    except (OSError, av.FFmpegError, *_BROKEN) as error:
        raise file.error(f"the picture is damaged ({error or type(error).__name__})") from error


def is_animation(file: MediaFile) -> bool:
    """True for a GIF, WEBP or PNG that moves."""
    with open_image(file, moving=True) as image:
        return image.format in _ANIMATIONS and _has_more(image)


def _has_more(image: Image.Image) -> bool:
    """True for more than one picture. The second tells: to count them could take minutes."""
    if image.format == "TIFF":
        image.seek(0)  # only then does Pillow look whether a page follows
    return getattr(image, "is_animated", False) and image.format not in _FIRST_OF_MANY


# What Pillow's decoders raise, beside OSError, on files that break their own format's rules.
_BROKEN = (
    *(SyntaxError, ValueError, TypeError, LookupError, ArithmeticError),
    *(EOFError, RuntimeError, MemoryError, struct.error, zlib.error),
)


def is_image(head: bytes) -> bool:
    """True if the first 32 bytes of a file are those of a picture, readable here or not."""
    signatures = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\0", b"MM\0*")
    webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    return head.startswith(signatures) or webp or (head[4:8] == b"ftyp" and head[8:12] in HEIF_BRANDS | _AVIF_BRANDS)


_AVIF_BRANDS = {b"avif", b"avis"}


def resize(pixels: Pixels, size: Size) -> Pixels:
    """Lanczos to (width, height), each side by itself; the very same pixels if it already has that size."""
    if (pixels.shape[1], pixels.shape[0]) == size:
        return pixels
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))


def prepare_keyframe(pixels: Pixels, canvas: Size, *, first: bool) -> Pixels:
    """A keyframe on its canvas (width, height), uint8 [h, w, 3] (tasks_and_validation 8.5).

    The first keyframe of a request (a lone last frame too) is stretched; a second one keeps its shape,
    covers the canvas and is cropped around the centre.
    """
    if first:
        return resize(pixels, canvas)
    height, width = pixels.shape[:2]
    scale = max(canvas[0] / width, canvas[1] / height)
    covering = max(canvas[0], round(width * scale)), max(canvas[1], round(height * scale))
    large = resize(pixels, covering)
    left, top = (covering[0] - canvas[0]) // 2, (covering[1] - canvas[1]) // 2
    return np.ascontiguousarray(large[top : top + canvas[1], left : left + canvas[0]])


def prepare_reference_image(
    pixels: Pixels, mode: str, canvas: Size, *, field: str = "media", rules: SizeRules = RELEASED_SIZES
) -> Pixels:
    """An image reference at the size of its mode (`diffusers`, `match`, `max`), uint8 (tasks_and_validation 8.5).

    Raises RequestError for a picture longer than 1:4 or 4:1.
    """
    size = pixels.shape[1], pixels.shape[0]
    check_ratio(size[0] / size[1], f"{size[0]}x{size[1]}", field)
    return resize(pixels, reference_image_size(size, mode, canvas, rules))


def _check_samples(image: Image.Image, file: MediaFile) -> None:
    """Raises MediaError for numbers that are no brightness on an ordinary screen, as far as the header tells."""
    numbers = set(getattr(image, "tag_v2", {}).get(_NUMBERS, ()))
    if 2 in numbers:
        raise file.error("its samples are signed numbers; save it with 8 or 16 bits without a sign")
    if image.mode in ("I", "F"):
        raise file.error("it has 32 bits per sample; save it with 8 or 16")
    with file.path.open("rb") as stream:
        head = stream.read(_HEADERS)
    for mark in _TRANSFER_MARKS.get(image.format or "", ()):
        found = head.find(mark)
        if found >= 0 and head[found + len(mark) :][3 if image.format != "PNG" else 1] in _HDR:
            raise file.error("it is an HDR picture (PQ or HLG); save it for an ordinary screen (SDR)")


_HEADERS = 1 << 16  # bytes that hold what a file says of its colours
_HDR = {16, 18}  # ITU-T H.273: PQ, HLG
_TRANSFER_MARKS = {"PNG": (b"\0\0\0\4cICP",), "AVIF": (b"colrnclx",), "HEIF": (b"colrnclx",)}


def _to_rgb(image: Image.Image, file: MediaFile) -> Image.Image:
    if image.mode.startswith("I;16"):
        return _from_deep_grey(image)
    if "transparency" in image.info and image.mode == "RGB" and _is_deep_png(file):
        return _from_deep_png(file)
    if image.mode == "CMYK":
        return _from_cmyk(image)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _from_deep_grey(image: Image.Image) -> Image.Image:
    """9 to 16 bits by their upper 8; what the transparent key names becomes white."""
    tags = getattr(image, "tag_v2", {})
    samples = np.asarray(image)
    grey = (samples >> tags.get(_BITS, (16,))[0] - 8).astype(np.uint8)
    if tags.get(_POLARITY) == 0:
        grey = 255 - grey
    return Image.fromarray(np.where(samples == image.info.get("transparency", -1), np.uint8(255), grey)).convert("RGB")


def _is_deep_png(file: MediaFile) -> bool:
    with file.path.open("rb") as stream:
        return stream.read(25)[24:] == b"\x10"  # bits a sample


def _from_deep_png(file: MediaFile) -> Image.Image:
    """Through FFmpeg, which compares the transparent key with all 16 bits; Pillow has dropped eight of them."""
    decoder = av.CodecContext.create("png", "r")
    frames = [*decoder.decode(av.Packet(file.path.read_bytes())), *decoder.decode(None)]
    samples = frames[0].to_ndarray(format="rgba64le")
    return Image.fromarray(np.where(samples[..., 3:] == 0, 255, samples[..., :3] >> 8).astype(np.uint8))


def _from_cmyk(image: Image.Image) -> Image.Image:
    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(image.info["icc_profile"]))
        turned = ImageCms.profileToProfile(image, profile, ImageCms.createProfile("sRGB"), outputMode="RGB")
    except (KeyError, OSError, ImageCms.PyCMSError):  # no profile, or one that is not for CMYK
        turned = None
    return turned or image.convert("RGB")


def _why_unknown(file: MediaFile) -> str:
    with file.path.open("rb") as stream:
        head = stream.read(32)
    if head.startswith((b"II*\0", b"MM\0*")):
        return "it is damaged, or a form of TIFF that is not read; save it as PNG"
    return f"the picture is damaged; {ALLOWED}" if is_image(head) else ALLOWED
