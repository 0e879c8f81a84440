"""A chance to stop between the layers of a network that runs for long."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from h3serve.runtime.offload import memory_buffers

AHEAD = 2  # modules that a GPU may have in its queue: it never idles, and what is queued is soon done


@contextmanager
def stopping(modules: Iterable[nn.Module], between: Callable[[], None], device: torch.device) -> Iterator[None]:
    """Inside the block `between` is called before each run of one of `modules` and may raise to end it.

    The host waits for the device, so that a call means that what came before is nearly done.
    """
    queued: deque[torch.cuda.Event] = deque()

    def before(*_: object) -> None:
        if (event := memory_buffers.record(device)) is not None:
            queued.append(event)
            if len(queued) > AHEAD:
                queued.popleft().synchronize()
        between()

    hooks = [module.register_forward_pre_hook(before) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
