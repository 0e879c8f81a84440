"""Detectors: what is seen and heard in a clip, from pixels and samples alone."""

from demo.detect.heard import Heard, Note, hear
from demo.detect.seen import Seen, see

__all__ = ["Heard", "Note", "Seen", "hear", "see"]
