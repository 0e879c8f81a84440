"""Server-sent events, line by line."""

from __future__ import annotations

import json
from typing import Any

Event = tuple[str, dict[str, Any]]  # name, data


class EventLines:
    """Puts lines together to events."""

    def __init__(self) -> None:
        self._name, self._data = "message", ""

    def take(self, line: str) -> Event | None:
        """The event that this line ends, if it ends one; comments, which show that the line is alive, end none."""
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data += value
        elif not line and self._data:
            event = self._name, json.loads(self._data)
            self._name, self._data = "message", ""
            return event
        return None
