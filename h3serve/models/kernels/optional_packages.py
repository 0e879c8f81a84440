"""Which optional packages can be used, looked up once a process: a search takes longer than the launch of a kernel."""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from importlib.util import find_spec

log = logging.getLogger(__name__)

_FLASH4_MODULES = ("flash_attn.cute.interface", "quack.gemm_interface")


@cache
def has_triton() -> bool:
    """Triton comes with CUDA builds of torch only: files that import it are imported where this is true."""
    return find_spec("triton") is not None


@cache
def flash4_loads() -> bool:
    """Whether the extra `fa4` can be imported: found is not enough, an installation may be half done or mismatched."""
    try:
        if find_spec("flash_attn.cute") is None:
            return False
    except ModuleNotFoundError:
        return False
    try:
        for module in _FLASH4_MODULES:
            import_module(module)
    except Exception as error:  # what a broken installation raises is anyone's guess
        log.warning("FlashAttention-4 is installed but cannot be loaded, other kernels are taken: %s", error)
        return False
    return True
