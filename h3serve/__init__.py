"""h3serve: video with its soundtrack from text, pictures, clips and sound, with MiniMax-H3.

`Generator` is imported on first use, so that building requests needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from h3serve.core.request import GenerationRequest
from h3serve.core.request_values import Condition, Target
from h3serve.core.version import VERSION

if TYPE_CHECKING:
    from h3serve.pipeline.generator import Generator

__version__ = VERSION
__all__ = ["Condition", "GenerationRequest", "Generator", "Target"]


def __getattr__(name: str) -> Any:
    if name == "Generator":
        from h3serve.pipeline.generator import Generator

        return Generator
    raise AttributeError(f"module 'h3serve' has no attribute {name!r}")
