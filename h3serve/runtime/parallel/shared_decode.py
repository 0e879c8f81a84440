"""One decode of a reference video per host, its pixels shared by all ranks of that host.

The first rank of each host decodes straight into an anonymous memory file; the others map the same
pages. Every rank gets a private (copy-on-write) array, so nobody changes another one's pixels.

Failure contract. All ranks, over all hosts, end alike:
1. Round one: the first rank of each host tells whether it decoded, failed, or has no memory files.
   After one failure every rank raises the same error: that of the lowest rank, if several failed.
2. Round two: the others tell whether they could map the pages. After one refusal, or without memory
   files, every rank that has no pixels of its own decodes for itself; a third round tells how it went.
3. Pixels are the same on all three ways. No descriptor outlives the call; a mapping lives exactly as
   long as the array made from it, and is gone after an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import traceback
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h3serve.runtime.parallel.process_group import ProcessGroup, host_identity
from h3serve.runtime.parallel.rank_errors import from_json, to_json

Pixels = NDArray[np.uint8]
Fill = Callable[[Pixels], None]  # decodes into the array it is given, and keeps no view of it
State = dict[str, Any]  # what a rank tells in a round: "way", and with it "error" or "offer"

OFFER = "/proc/{process}/fd/{descriptor}"
READY: State = {"way": "ready"}
REFUSED: State = {"way": "refused"}
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def shared_decode(shape: tuple[int, ...], fill: Fill, group: ProcessGroup, *, host: str | None = None) -> Pixels:
    """The video uint8 `shape` that `fill` decodes, on every rank of `group`; all of them have to call it.

    Raises on all ranks what `fill` raised on one. Ranks with the same `host` share.
    """
    hosts = group.gather_json(host or host_identity())
    first = hosts.index(hosts[group.index])
    video = _SharedVideo(shape, fill, group.index)
    try:
        states = _round(group, video.decode_and_offer() if group.index == first else READY)
        if REFUSED not in states:
            states = _round(group, READY if group.index == first else video.map(states[first]["offer"]))
        if REFUSED in states:
            _round(group, READY if group.index == first and video.pixels is not None else video.decode_alone())
        assert video.pixels is not None
        return video.pixels
    except BaseException:
        video.release()
        raise
    finally:
        video.withdraw()


def _round(group: ProcessGroup, state: State) -> list[State]:
    """Everybody's state; raises the first error among them, the same one everywhere."""
    states = group.gather_json(state)
    for told in states:
        if told["way"] == "failed":
            raise from_json(told["error"])
    return states


class _SharedVideo:
    """The pixels of one rank, wherever they lie, and what has to be given back."""

    def __init__(self, shape: tuple[int, ...], fill: Fill, rank: int) -> None:
        self.shape, self.fill, self.rank = shape, fill, rank
        self.pixels: Pixels | None = None
        self._mapping: mmap.mmap | None = None
        self._descriptor: int | None = None

    def decode_and_offer(self) -> State:
        """Decode into a memory file that other processes can open while this one holds it."""
        try:
            self._descriptor = os.memfd_create("h3serve-video", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.posix_fallocate(
                self._descriptor, 0, prod(self.shape)
            )  # full memory is an error here, not a signal later
            self._map(self._descriptor, mmap.ACCESS_WRITE)
        except OSError:
            self.release()
            return REFUSED
        return self._decode() or self._offer(self._descriptor)

    def _offer(self, descriptor: int) -> State:
        try:
            self.release()
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)  # refused while anybody can still write
            self._map(descriptor, mmap.ACCESS_COPY)  # from here on private, like everybody's
        except OSError:
            return REFUSED
        path = OFFER.format(process=os.getpid(), descriptor=descriptor)
        return {"way": "ready", "offer": [path, os.fstat(descriptor).st_ino]}

    def map(self, offer: tuple[str, int]) -> State:
        """Map the pages that the host's first rank offers."""
        path, inode = offer
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return REFUSED
        try:
            if os.fstat(descriptor).st_ino != inode:  # another process by the same number
                return REFUSED
            self._map(descriptor, mmap.ACCESS_COPY)
        except (OSError, ValueError):
            return REFUSED
        finally:
            os.close(descriptor)
        return READY

    def decode_alone(self) -> State:
        """Decode into memory of this rank."""
        self.release()
        self.pixels = np.empty(self.shape, np.uint8)
        return self._decode() or READY

    def release(self) -> None:
        """Give the mapping back now, unless somebody else holds a view of it: then with that view."""
        self.pixels, mapping, self._mapping = None, self._mapping, None
        if mapping is not None:
            with contextlib.suppress(BufferError):
                mapping.close()

    def withdraw(self) -> None:
        """Close the memory file; its pages live as long as anybody maps them."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _decode(self) -> State | None:
        """Run `fill`; its failure as a state."""
        assert self.pixels is not None
        try:
            self.fill(self.pixels)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # their locals would hold on to the pixels
            return {"way": "failed", "error": to_json(error, self.rank)}
        return None

    def _map(self, descriptor: int, access: int) -> None:
        self._mapping = mmap.mmap(descriptor, prod(self.shape), access=access)
        self.pixels = np.frombuffer(self._mapping, np.uint8).reshape(self.shape)
