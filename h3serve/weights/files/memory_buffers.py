"""Memory with a purpose: flat buffers, exact-size pinned memory, and streams that are nothing on a CPU."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

import torch

from h3serve.core.errors import CapacityError

ALIGN = 256  # what the CUDA allocator gives; GEMM kernels are chosen by alignment too


@dataclass(frozen=True)
class Place:
    """One tensor's place in a flat buffer."""

    offset: int  # bytes
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Flat:
    """Tensors laid out one after another in one buffer, so that they travel in one copy."""

    places: Mapping[str, Place]
    num_bytes: int

    @staticmethod
    def of(tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> Flat:
        """The layout of tensors of these (shape, dtype), in this order."""
        places, at = {}, 0
        for name, (shape, dtype) in tensors.items():
            places[name] = Place(at, tuple(shape), dtype)
            at += -(-torch.Size(shape).numel() * dtype.itemsize // ALIGN) * ALIGN
        return Flat(places, at)

    def views(self, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every tensor as a view of `buffer`, uint8 [at least num_bytes]."""
        return {name: _view(buffer, place) for name, place in self.places.items()}


def _view(buffer: torch.Tensor, place: Place) -> torch.Tensor:
    num_bytes = torch.Size(place.shape).numel() * place.dtype.itemsize
    return buffer[place.offset : place.offset + num_bytes].view(place.dtype).view(place.shape)


def device_buffer(num_bytes: int, device: torch.device) -> torch.Tensor:
    """uint8 [num_bytes] on a device, writable inside and outside of inference mode."""
    with torch.inference_mode(False):
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)


def host_buffer(num_bytes: int, *, pinned: bool, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """`num_bytes` of host memory as `dtype`; pinned memory is given back with the last view of it.

    torch's own pinned allocator rounds up to a power of two, which for 9 MiB pages wastes most of
    it. CapacityError if the system refuses to pin.
    """
    with torch.inference_mode(False):
        memory = mmap.mmap(-1, max(1, num_bytes))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages: small ones do
                memory.madvise(mmap.MADV_HUGEPAGE)
        buffer = torch.frombuffer(memory, dtype=torch.uint8, count=max(1, num_bytes))[:num_bytes]
        if pinned and num_bytes:
            _pin(memory, buffer.data_ptr(), num_bytes)
        return buffer.view(dtype)  # here: made in inference mode, it could not be written outside of it


def _pin(memory: mmap.mmap, address: int, num_bytes: int) -> None:
    runtime = torch.cuda.cudart()
    error = runtime.cudaHostRegister(address, num_bytes, 0)
    if error != runtime.cudaError.success:
        gib = num_bytes / 2**30
        raise CapacityError(f"{gib:.1f} GiB of host memory could not be pinned ({error})")
    weakref.finalize(memory, runtime.cudaHostUnregister, address)


def new_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream beside the computing one; None on a CPU, where everything happens at once."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Work inside is queued on `stream`."""
    return torch.cuda.stream(stream) if stream is not None else nullcontext()


def record(device: torch.device) -> torch.cuda.Event | None:
    """A mark behind all that is queued on the current stream so far."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


def wait(event: torch.cuda.Event | None, device: torch.device) -> None:
    """Work queued from here on starts after the mark; the host does not wait."""
    if event is not None:
        torch.cuda.current_stream(device).wait_event(event)


def settle(event: torch.cuda.Event | None) -> None:
    """The host waits until the mark is reached."""
    if event is not None:
        event.synchronize()
