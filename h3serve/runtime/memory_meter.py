"""Device memory: the peak of loading and the peak of running, apart.

The load peak is frozen when initialisation is done; it counts from what the process held before, such as the
workspaces of an earlier engine's libraries. The runtime peak counts from there, from the memory that is
allocated then, over warm-up and requests, and a replica's is the largest of its ranks'.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


class PeakMeter:
    """One process's peaks in bytes. On a CPU all are zero and nothing is reduced.

    `mark` may be called as often as one likes, to tell stages apart: the peaks of whole phases are
    not lost by it.
    """

    def __init__(self, device: torch.device, largest: Callable[[int], int] | None = None) -> None:
        """`largest` returns the maximum over ranks; every rank has to call it."""
        self.device, self._largest = device, largest
        self._load_peak: int | None = None
        self._peak = 0
        self._counts = device.type == "cuda"
        self._before = torch.cuda.memory_allocated(device) if self._counts else 0
        self.mark()

    @property
    def load_peak(self) -> int:
        """Bytes of the peak while loading, or so far if loading is not done."""
        return self._peak_so_far() - self._before if self._load_peak is None else self._load_peak

    @property
    def runtime_peak(self) -> int:
        """Bytes of the peak since loading was done; 0 before."""
        return 0 if self._load_peak is None else self._peak_so_far()

    def load_done(self) -> None:
        """Freezes the load peak, the largest of all ranks'; the runtime peak begins at what is allocated now."""
        self.mark()
        self._load_peak, self._peak = self._of_replica(self._peak - self._before), 0
        self.mark()

    def mark(self) -> int:
        """Returns the peak in bytes since the last mark, and starts the next one."""
        if not self._counts:
            return 0
        peak = torch.cuda.max_memory_allocated(self.device)
        self._peak = max(self._peak, peak)
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak

    def replica_peak(self) -> int:
        """The largest runtime peak of all ranks; no collective on a CPU or with one rank."""
        return self._of_replica(self.runtime_peak)

    def _of_replica(self, peak: int) -> int:
        return self._largest(peak) if self._counts and self._largest is not None else peak

    def _peak_so_far(self) -> int:
        if not self._counts:
            return 0
        return max(self._peak, torch.cuda.max_memory_allocated(self.device))
