"""How a list of names is put into one sentence."""

from __future__ import annotations

from collections.abc import Collection

SHOWN = 3


def some(names: Collection[str]) -> str:
    """The first few names and how many more there are."""
    first = ", ".join(list(names)[:SHOWN])
    more = len(names) - SHOWN
    return first if more <= 0 else f"{first} and {more} more"
