"""Does decoding ever take a damaged frame for a whole one, in some runs and not in others?

    python -m bench.damaged_videos [--decodes 2000] [--busy 4] [--threading NONE|FRAME|SLICE|AUTO]

Makes H.264 videos with flipped bits and decodes them again and again while other processes keep the cores busy.
Each decode is held against one with a single thread: the same frames, the same pixels. `--threading` shows what
another setting of FFmpeg would do.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np

from h3serve.core.errors import MediaError
from h3serve.media.read import frame_clock as frames_module
from h3serve.media.sources.media_file import MediaFile
from tests.media.films import film

WIDTH, HEIGHT, COUNT = 160, 96, 48
FILES = 25


def damaged_files(folder: Path) -> list[Path]:
    """Noise over a moving ramp, two flipped bits in each file."""
    rng = np.random.default_rng(4)
    ramp = np.linspace(0, 160, WIDTH + COUNT).astype(np.uint8)[:, None]
    images = [ramp[i : i + WIDTH] + rng.integers(0, 90, (HEIGHT, WIDTH, 3), np.uint8) for i in range(COUNT)]
    whole = film(folder / "whole.mp4", images, options={"crf": "20", "bf": "3", "g": "24"}).read_bytes()
    paths = []
    for seed in range(FILES):
        rng, raw = np.random.default_rng(seed), bytearray(whole)
        for place in rng.integers(whole.index(b"mdat") + 2000, len(whole), 2):
            raw[place] ^= 1 << int(rng.integers(8))
        paths.append(folder / f"{seed}.mp4")
        paths[-1].write_bytes(raw)
    return paths


def decoded(path: Path, threading: str) -> list[str]:
    """A hash of each frame that is taken for whole."""
    frames_module.THREADING = threading
    seen = []
    try:
        for frame in frames_module.frames(MediaFile(path)):
            seen.append(f"{frame.pts} {hashlib.md5(frame.to_ndarray(), usedforsecurity=False).hexdigest()}")
    except MediaError as error:
        seen.append(str(error))
    return seen


def burn() -> None:
    while True:
        sum(range(10_000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decodes", type=int, default=2000)
    parser.add_argument("--busy", type=int, default=4)
    parser.add_argument("--threading", default=frames_module.THREADING)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        paths = damaged_files(Path(name))
        single = [decoded(path, "NONE") for path in paths]
        others = [multiprocessing.Process(target=burn, daemon=True) for _ in range(options.busy)]
        for other in others:
            other.start()
        begun, different = time.perf_counter(), [0] * FILES
        for index in range(options.decodes):
            at = index % FILES
            different[at] += decoded(paths[at], options.threading) != single[at]
        seconds = time.perf_counter() - begun
        for other in others:
            other.terminate()
    refused = sum(len(frames) < COUNT for frames in single)
    print(f"{FILES} damaged files, {refused} of them end early with one thread")
    print(f"{options.threading}: {sum(different)} of {options.decodes} decodes differ from that, in {seconds:.0f} s")
    print(f"files that ever differed: {sum(map(bool, different))}")


if __name__ == "__main__":
    main()
