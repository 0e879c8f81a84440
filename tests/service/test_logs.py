import json
import logging

from h3serve.service.logs import JsonLines


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
