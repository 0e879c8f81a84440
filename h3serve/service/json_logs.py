"""Structured logs: one JSON object a line on stderr, with the job's id where there is one."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from datetime import UTC, datetime

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonLines(logging.Formatter):
    """time, level, logger, message, every `extra` field, and the traceback when there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {k: v for k, v in vars(record).items() if k not in _PLAIN}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class Flood(logging.Filter):
    """Lets through `most` lines of a kind in `seconds`; the next that passes tells how many were left out.

    A kind is the place that logs. Information is let through: each line of it stands for work that was done.
    """

    def __init__(self, most: int = 20, seconds: float = 10.0) -> None:
        super().__init__()
        self._most, self._seconds = most, seconds
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str, int], tuple[float, int]] = {}  # place -> (since, lines)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        place, now = (record.name, record.pathname, record.lineno), time.monotonic()
        with self._lock:
            since, lines = self._seen.get(place, (now, 0))
            if now - since > self._seconds:
                if lines > self._most:
                    record.left_out = lines - self._most
                since, lines = now, 0
            self._seen[place] = since, lines + 1
        return lines < self._most


def start_logs(level: int = logging.INFO) -> None:
    """Send the logs of this process to stderr as JSON lines, in place of earlier handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(Flood())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("httpx").setLevel(logging.WARNING)
