"""Writes MP4 while frames are still being made, then reads the file back before it is named (8.9)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc, Interpolation

from h3serve.core.errors import OutputError
from h3serve.core.geometry import FPS, SAMPLE_RATE
from h3serve.media.write.outputs import Frames, Wave, check_output, check_wave, replacing

CRF = 25
PRESET = "fast"
AUDIO_BITS_PER_SECOND = 192_000
# Of x264, always as many: left alone it takes 1.5 a core, and other threads make another file.
THREADS = 8
# Whole ticks for frames and samples: with the default of 1000 a 107-frame clip ends 0.3 ms early.
MUXER = {"movflags": "+faststart", "movie_timescale": "96000"}


@contextmanager
def mp4_writer(
    target: str | Path,
    *,
    width: int,
    height: int,
    num_frames: int | None = None,
    crf: int = CRF,
    preset: str = PRESET,
    record: str | None = None,
) -> Iterator[Mp4Writer]:
    """Open a writer; when the block ends well, `target` is a complete and checked MP4.

    `num_frames` is the planned length (default: whatever is written); `record` becomes the file's comment.
    Any exception in the block, a failing disk or a file that does not check out (OutputError) leaves nothing behind.
    """
    check_output(target)
    if width % 2 or height % 2:
        raise OutputError(f"MP4 needs an even width and height, not {width}x{height}")
    with replacing(target) as part:
        with av.open(str(part), "w", format="mp4", options=MUXER) as box:
            if record is not None:
                box.metadata["comment"] = record
            writer = Mp4Writer(box, width=width, height=height, crf=crf, preset=preset)
            yield writer
            writer.finish()
        expected = writer.num_frames if num_frames is None else num_frames
        verify_mp4(part, width=width, height=height, num_frames=expected)


class Mp4Writer:
    """Encodes into an open container, sound and picture kept side by side. One thread only."""

    def __init__(self, box: Any, *, width: int, height: int, crf: int, preset: str) -> None:
        self.num_frames = 0
        self._box, self._shape = box, (height, width, 3)
        self._wave: Wave = np.zeros((2, 0), np.float32)
        self._video = box.add_stream("libx264", rate=Fraction(FPS))
        self._video.width, self._video.height, self._video.pix_fmt = width, height, "yuv420p"
        self._video.options = {"crf": str(crf), "preset": preset, **_steady()}
        context = self._video.codec_context
        context.thread_type, context.thread_count = "FRAME", THREADS  # PyAV's own choice is slices: larger files
        context.colorspace, context.color_range = Colorspace.ITU709, ColorRange.MPEG
        context.color_primaries, context.color_trc = ColorPrimaries.BT709, ColorTrc.BT709
        self._audio = box.add_stream("aac", rate=SAMPLE_RATE, layout="stereo")
        self._audio.bit_rate = AUDIO_BITS_PER_SECOND
        self._num_samples = 0  # already encoded

    def write_frames(self, frames: npt.NDArray[Any]) -> None:
        """Append pictures [F, H, W, 3]: uint8, or float in [0, 1] (see `as_uint8`)."""
        if frames.ndim != 4 or frames.shape[1:] != self._shape:
            raise OutputError(f"frames must be [F, {', '.join(map(str, self._shape))}], not {list(frames.shape)}")
        for pixels in as_uint8(frames):
            frame = _yuv(pixels)
            frame.pts, frame.time_base = self.num_frames, Fraction(1, FPS)
            self._box.mux(self._video.encode(frame))
            self.num_frames += 1
        self._encode_audio()

    def write_audio(self, wave: Wave) -> None:
        """Append sound, float32 [2, n] at 32 kHz: before, between or after the frames."""
        self._wave = np.concatenate([self._wave, check_wave(wave)], axis=1)

    def finish(self) -> None:
        """Encode what is left; called by `mp4_writer`.

        The VAE makes whole latents of sound, which may end 8.3 ms after the last frame: the file ends with the frame.
        """
        if not self.num_frames or not self._wave.shape[1]:
            missing = "sound" if self.num_frames else "frames"
            raise OutputError(f"the MP4 was given no {missing}")
        check_drift(self._wave.shape[1] / SAMPLE_RATE, self.num_frames / FPS)
        self._encode_audio()
        self._box.mux(self._video.encode(None))
        self._box.mux(self._audio.encode(None))

    def _encode_audio(self) -> None:
        """Sound keeps pace with the picture, so that packets alternate and none wait in memory."""
        part = self._wave[:, self._num_samples : self.num_frames * SAMPLE_RATE // FPS]
        if part.shape[1]:
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(part), "fltp", "stereo")
            frame.sample_rate, frame.time_base = SAMPLE_RATE, Fraction(1, SAMPLE_RATE)
            frame.pts = self._num_samples
            self._box.mux(self._audio.encode(frame))
            self._num_samples += part.shape[1]


def as_uint8(frames: npt.NDArray[Any]) -> Frames:
    """Pictures as uint8: floats are clamped to [0, 1], scaled by 255 and truncated (8.9).

    Raises OutputError for NaN or infinite values and for other types.
    """
    if frames.dtype == np.uint8:
        return frames
    if frames.dtype.kind != "f":
        raise OutputError(f"frames must be uint8 or float in [0, 1], not {frames.dtype}")
    if not np.isfinite(frames).all():
        raise OutputError("frames have values that are NaN or infinite")
    return np.asarray(frames.clip(0, 1) * 255).astype(np.uint8)


def _yuv(pixels: Frames) -> Any:
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
    return frame.reformat(
        format="yuv420p",
        interpolation=Interpolation.BICUBIC | Interpolation.ACCURATE_RND,
        dst_colorspace=Colorspace.ITU709,
        dst_color_range=ColorRange.MPEG,
        dst_color_primaries=ColorPrimaries.BT709,
        dst_color_trc=ColorTrc.BT709,
        threads=1,
    )


@cache
def _steady() -> dict[str, str]:
    """x264's options that make equal frames equal files, run after run.

    Its AVX-512 code for macroblock trees does not (core 165, narrow frames: up to 11 files in 30 writes). Without
    those trees files are 6 % larger and 1 dB worse; without AVX-512 they are the same, and as quick within 10 %.
    """
    try:
        has_avx512 = "avx512f" in Path("/proc/cpuinfo").read_text()
    except OSError:
        has_avx512 = False
    return {"x264-params": "asm=AVX2"} if has_avx512 else {}


MAX_DRIFT_S = 0.25  # between the ends of sound and picture


def check_drift(audio_seconds: float, picture_seconds: float) -> None:
    """Raise OutputError if sound and picture do not end together."""
    drift = abs(audio_seconds - picture_seconds)
    if drift > MAX_DRIFT_S:
        raise OutputError(f"sound and picture differ by {drift:.3f} s, at most {MAX_DRIFT_S} s is right")


def verify_mp4(path: Path, *, width: int, height: int, num_frames: int) -> None:
    """Raise OutputError naming every difference from one H.264 and one AAC stream of that size.

    Frames are counted packet by packet, so a truncated file cannot pass on its header's word.
    """
    try:
        with av.open(str(path)) as box:
            found = _describe(box)
    except (av.FFmpegError, ValueError) as error:
        raise OutputError(f"the MP4 cannot be read back: {error}") from error
    wanted = {
        "container": "mov,mp4,m4a,3gp,3g2,mj2",
        "streams": ["video", "audio"],
        "video": ("h264", "yuv420p"),
        "size": (width, height),
        "fps": 24,
        "frames": num_frames,
        "seconds": Fraction(num_frames, 24),
        "audio": ("aac", 32_000, 2),
    }
    wrong = [
        f"{key} is {found.get(key)} instead of {value}" for key, value in wanted.items() if found.get(key) != value
    ]
    if wrong:
        raise OutputError(f"the MP4 is not what was meant: {'; '.join(wrong)}")
    check_drift(found["audio seconds"], found["seconds"])


def _describe(box: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"container": box.format.name}
    found["streams"] = [stream.type for stream in box.streams]
    for video in box.streams.video[:1]:
        context = video.codec_context
        found["video"] = (context.name, context.pix_fmt)
        found["size"], found["fps"] = (context.width, context.height), video.average_rate
        found["seconds"] = (video.duration or 0) * video.time_base
        found["frames"] = sum(1 for packet in box.demux(video) if packet.size)
    for audio in box.streams.audio[:1]:
        context = audio.codec_context
        found["audio"] = (context.name, context.sample_rate, context.layout.nb_channels)
        found["audio seconds"] = float((audio.duration or 0) * audio.time_base)
    return found
