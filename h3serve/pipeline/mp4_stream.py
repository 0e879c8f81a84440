"""The MP4 is encoded in a thread of its own while the next frames are decoded."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h3serve.core.plan import Plan
from h3serve.media.write.mp4_writer import mp4_writer

Chunk = NDArray[np.uint8]  # [F, H, W, 3]
_WAITING = 2  # chunks that may wait for the encoder before the decoder is held back
_END, _ABORT = "end", "abort"


class _Aborted(Exception):
    """Raised inside the writer's block, so that it leaves nothing behind."""


def is_mp4(path: str | Path) -> bool:
    """True for paths whose file is written while frames are decoded."""
    return Path(path).suffix.lower() == ".mp4"


@contextmanager
def mp4_sink(
    output: str | Path | None, plan: Plan, audio: NDArray[np.float32], record: str | None
) -> Iterator[Callable[[Chunk], None] | None]:
    """Where decoded frames go beside the result: the MP4 writer, which also writes `record`, or nowhere."""
    if output is None or not is_mp4(output):
        yield None
        return
    with _encoded(output, plan, audio, record) as put:
        yield put


@contextmanager
def _encoded(
    path: str | Path, plan: Plan, audio: NDArray[np.float32], record: str | None
) -> Iterator[Callable[[Chunk], None]]:
    """Yields a function that takes frames; when the block ends well, `path` is a whole, checked MP4.

    An exception in the block, or in the encoder (raised again here), leaves no file.
    """
    waiting: queue.Queue[Any] = queue.Queue(_WAITING)
    failures: list[BaseException] = []

    def encode() -> None:
        try:
            width, height = plan.canvas
            with mp4_writer(path, width=width, height=height, num_frames=plan.frames, record=record) as writer:
                writer.write_audio(audio)
                while (item := waiting.get()) is not _END:
                    if item is _ABORT:
                        raise _Aborted
                    writer.write_frames(item)
        except BaseException as error:
            failures.append(error)
            if not isinstance(error, _Aborted):
                while not isinstance(waiting.get(), str):  # the decoder goes on until it notices
                    pass

    def put(chunk: Chunk) -> None:
        if failures:
            raise failures[0]
        waiting.put(chunk)

    thread = threading.Thread(target=encode, name="mp4-writer")
    thread.start()
    try:
        yield put
    except BaseException:
        waiting.put(_ABORT)
        thread.join()
        raise
    waiting.put(_END)
    thread.join()
    if failures:
        raise failures[0]
