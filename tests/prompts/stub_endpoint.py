"""A local stand-in for an OpenAI-compatible endpoint: it answers with what a test has laid out."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Stub(ThreadingHTTPServer):
    """`answers` are sent in turn, the last one again and again: a text, or `(status, bytes)`, or None for silence."""

    daemon_threads = True
    answers: list[Any]
    asked: list[dict[str, Any]]
    keys: list[str | None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Stub

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.keys.append(self.headers["Authorization"])
        answers = self.server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            threading.Event().wait(30)
            return
        if isinstance(answer, str):
            choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
            answer = 200, json.dumps({"choices": [choice]}).encode()
        status, data = answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def stub_endpoint(*answers: Any) -> Iterator[Stub]:
    with Stub(("127.0.0.1", 0), _Handler) as server:
        server.answers, server.asked, server.keys = list(answers), [], []
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
