import json
import logging

import pytest

from h3serve.service.json_logs import Flood, JsonLines


def test_one_json_line_with_the_jobs_id_and_the_traceback() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.makeLogRecord(
        {"name": "a", "levelname": "ERROR", "msg": "%s failed\n", "args": ("ü",), "job": "video_1"}
    )
    record.exc_info = info
    text = JsonLines().format(record)
    line = json.loads(text)
    assert "\n" not in text
    assert (line["message"], line["job"], line["level"]) == ("ü failed\n", "video_1", "error")
    assert line["traceback"].endswith("ValueError: no") and line["time"].endswith("+00:00")


def test_a_flood_of_one_kind_is_cut_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr("h3serve.service.json_logs.time.monotonic", lambda: clock)

    def line(number: int, level: int = logging.WARNING) -> logging.LogRecord:
        return logging.LogRecord("a", level, "a.py", number, "text", (), None)

    flood = Flood(most=3, seconds=10.0)
    assert [flood.filter(line(1)) for _ in range(1000)] == [True] * 3 + [False] * 997
    assert flood.filter(line(2)) and all(flood.filter(line(1, logging.INFO)) for _ in range(100))
    clock = 10.1
    after = line(1)
    assert flood.filter(after) and json.loads(JsonLines().format(after))["left_out"] == 997
    assert flood.filter(again := line(1)) and "left_out" not in vars(again)
