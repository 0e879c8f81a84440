"""`Client`: the calls, one after another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from h3serve.client.bodies import body_of, new_key
from h3serve.client.event_lines import EventLines
from h3serve.client.part_file import PartFile
from h3serve.client.problems import ServerRefused, refusal_of
from h3serve.client.retries import AGAIN, FIRST_S, Retries
from h3serve.client.served_video import Video
from h3serve.core.request import GenerationRequest

URL = "http://127.0.0.1:8000"
SILENT_S = 30.0  # a stream tells at least every 10 s that it is alive
PATIENCE_S = 60.0


class Client:
    """One server. Every call may meet broken connections and a server that restarts: it is made again, and makes
    nothing twice, until there was no answer for `patience` seconds (ServerLost). What the server refuses is
    ServerRefused.
    """

    def __init__(
        self,
        url: str = URL,
        *,
        key: str | None = None,
        patience: float = PATIENCE_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=SILENT_S, transport=transport)
        self._patience = patience

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections."""
        self._http.close()

    def create(
        self,
        request: GenerationRequest | Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        **more: Any,
    ) -> Video:
        """A video that the server accepted; files that conditions name here are sent along.

        `more` are fields of the service (`priority`, `webhook_url`). With the same `idempotency_key` it is the same
        video, in another process too.
        """
        headers = {"Idempotency-Key": idempotency_key or new_key()}
        return Video.of(self._json("POST", "/v1/videos", headers=headers, **body_of(request, more)))

    def get(self, video_id: str) -> Video:
        """Where a video stands."""
        return Video.of(self._json("GET", f"/v1/videos/{video_id}"))

    def videos(self, *, limit: int = 20, after: str | None = None) -> list[Video]:
        """The newest videos of this key; `after` is the last id of the page before."""
        query = {"limit": limit, **({"after": after} if after else {})}
        return [Video.of(body) for body in self._json("GET", "/v1/videos", params=query)["data"]]

    def cancel(self, video_id: str) -> Video:
        """The video, cancelled or about to be; one that has ended is refused."""
        return Video.of(self._json("POST", f"/v1/videos/{video_id}/cancel"))

    def delete(self, video_id: str) -> None:
        """Forgets a video and its files."""
        try:
            self._json("DELETE", f"/v1/videos/{video_id}")
        except ServerRefused as refused:
            if refused.status != 404:  # gone: by a call whose answer was lost, or by somebody else
                raise

    def watch(self, video_id: str) -> Iterator[Video]:
        """The video at every change, until it has ended; ServerRefused if it is deleted meanwhile."""
        retries = Retries(self._patience)
        while True:
            try:
                with self._http.stream("GET", f"/v1/videos/{video_id}/events") as reply:
                    if reply.status_code in AGAIN:
                        reply.read()
                        time.sleep(retries.next_wait(reply))
                        continue
                    _check(reply)
                    lines = EventLines()
                    for line in reply.iter_lines():
                        retries.succeeded()
                        if (event := lines.take(line)) is None:
                            continue
                        name, data = event
                        if name == "deleted":
                            raise ServerRefused(404, f"video {video_id} was deleted", code="not_found")
                        yield (video := Video.of(data))
                        if video.is_final:
                            return
                time.sleep(FIRST_S)  # the server stops, and may be back
            except httpx.TransportError as error:
                time.sleep(retries.next_wait(error))

    def wait(self, video_id: str) -> Video:
        """The video when it has ended."""
        *_, last = self.watch(video_id)
        return last

    def download(self, video_id: str, path: str | Path, *, variant: str = "video") -> Path:
        """Writes a file of a completed video; broken off, it goes on with the bytes that are missing."""
        target, retries = Path(path), Retries(self._patience)
        with PartFile(target) as part:
            while True:
                try:
                    with self._http.stream(
                        "GET", f"/v1/videos/{video_id}/content", params={"variant": variant}, headers=part.headers
                    ) as reply:
                        if reply.status_code in AGAIN:
                            reply.read()
                            time.sleep(retries.next_wait(reply))
                            continue
                        _check(reply)
                        part.begin(reply)
                        for data in reply.iter_bytes():
                            retries.succeeded()
                            part.take(data)
                        break
                except httpx.TransportError as error:
                    time.sleep(retries.next_wait(error))
        return target

    def _json(self, method: str, path: str, **how: Any) -> dict[str, Any]:
        retries = Retries(self._patience)
        while True:
            try:
                reply = self._http.request(method, path, **how)
            except httpx.TransportError as error:
                time.sleep(retries.next_wait(error))
                continue
            if reply.status_code not in AGAIN:
                break
            time.sleep(retries.next_wait(reply))
        _check(reply)
        body: dict[str, Any] = reply.json()
        return body


def _check(reply: httpx.Response) -> None:
    if reply.status_code >= 400:
        reply.read()
        raise refusal_of(reply)
