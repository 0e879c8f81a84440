"""Results on disk: what a path may be, whole files or none, and WAV, PNG folder and npz.

MP4 has its own file (writer.py). The path decides the form:

    clip.mp4   picture and sound          clip.npz   arrays, exactly as given
    clip.wav   sound only                 clip/      a new folder of PNG frames and audio.wav
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

from h3serve.core.errors import OutputError, RequestError
from h3serve.core.geometry import SAMPLE_RATE
from h3serve.system.disk_files import whole_file

OutputKind = Literal["mp4", "wav", "npz", "frames"]
SUFFIXES: dict[str, OutputKind] = {".mp4": "mp4", ".wav": "wav", ".npz": "npz"}
ALLOWED = "a path ending in .mp4, .wav or .npz, or in / for a folder of PNG frames"
ENCODERS = {"libx264", "aac"}

Wave = npt.NDArray[np.float32]
Frames = npt.NDArray[np.uint8]


def check_output(path: str | Path) -> OutputKind:
    """What a result path asks for; call it before any work, so that a bad path costs nothing.

    Raises RequestError (field `out`) for an unknown suffix, a missing or read-only folder, a
    folder where a file should go and a frames folder that already has files in it.
    """
    kind = _kind(path)
    target = Path(path)
    if kind == "frames":
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise RequestError("out", str(path), "a folder of frames must be new or empty")
    elif target.is_dir():
        raise RequestError("out", str(path), "it is a folder; name a file in it")
    _check_folder(target)
    if kind == "mp4" and (missing := ENCODERS - av.codecs_available):
        raise OutputError(f"this PyAV cannot write MP4: it lacks {', '.join(sorted(missing))}")
    return kind


def check_trace(path: str | Path) -> None:
    """RequestError (field `profile`) for a path that no trace can be written to."""
    target = Path(path)
    if not target.name.endswith((".json", ".json.gz")):
        raise RequestError("profile", str(path), "a path ending in .json or .json.gz")
    if target.is_dir():
        raise RequestError("profile", str(path), "it is a folder; name a file in it")
    _check_folder(target, "profile")


def _kind(path: str | Path) -> OutputKind:
    if str(path).endswith(("/", os.sep)):
        return "frames"
    kind = SUFFIXES.get(Path(path).suffix.lower())
    if kind is None:
        raise RequestError("out", str(path), ALLOWED)
    return kind


def _check_folder(target: Path, field: str = "out") -> None:
    folder = target.absolute().parent
    if not folder.is_dir():
        raise RequestError(field, str(target), "its folder does not exist")
    try:
        # Permission bits say nothing about a read-only or full disk (or about root): try it.
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0")
    except OSError as error:
        reason = f"its folder cannot be written to ({error.strerror})"
        raise RequestError(field, str(target), reason) from error


@contextmanager
def replacing(target: str | Path) -> Iterator[Path]:
    """Yields a name beside `target` as `whole_file` does; OutputError for a failing disk."""
    try:
        with whole_file(Path(target)) as part:
            yield part
    except OSError as error:
        raise OutputError(f"{Path(target).absolute().name} could not be written: {error.strerror}") from error


def check_wave(wave: Wave) -> Wave:
    """`wave` if it is float [2, n], n > 0, and finite; otherwise OutputError with the reason."""
    if wave.ndim != 2 or wave.shape[0] != 2 or wave.shape[1] == 0 or wave.dtype.kind != "f":
        raise OutputError(f"audio must be float32 [2, n], not {wave.dtype} {list(wave.shape)}")
    bad = wave.size - int(np.isfinite(wave).sum())
    if bad:
        raise OutputError(f"audio has {bad} of {wave.size} samples that are NaN or infinite")
    return wave.astype(np.float32, copy=False)


def save_wav(target: str | Path, wave: Wave, *, bits: Literal[16, 32] = 32) -> None:
    """Write float32 [2, n] at 32 kHz: 32-bit float exactly, or 16-bit, rounded and clipped."""
    packed = np.ascontiguousarray(check_wave(wave).T).reshape(1, -1)
    if bits == 16:
        packed = np.rint(packed.clip(-1, 1) * 32767).astype(np.int16)
    codec, form = ("pcm_f32le", "flt") if bits == 32 else ("pcm_s16le", "s16")
    with replacing(target) as part, av.open(str(part), "w", format="wav") as box:
        stream = box.add_stream(codec, rate=SAMPLE_RATE, layout="stereo")
        frame = av.AudioFrame.from_ndarray(packed, format=form, layout="stereo")
        frame.sample_rate = SAMPLE_RATE
        box.mux(stream.encode(frame))
        box.mux(stream.encode(None))


def save_frames(target: str | Path, frames: Frames, wave: Wave | None = None) -> None:
    """Write uint8 [F, H, W, 3] as frame_00000.png, … in a new folder, with audio.wav if given."""
    with replacing(target) as part:
        part.unlink()
        part.mkdir()
        for index, pixels in enumerate(frames):
            Image.fromarray(pixels).save(part / f"frame_{index:05d}.png")
        if wave is not None:
            save_wav(part / "audio.wav", wave)


def save_npz(target: str | Path, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
    """Write named arrays exactly as they are; equal arrays give equal bytes, for comparison."""
    with replacing(target) as part, part.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
