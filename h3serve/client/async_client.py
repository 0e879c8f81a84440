"""`AsyncClient`: the calls of `Client`, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from h3serve.client.bodies import body_of, new_key
from h3serve.client.client import PATIENCE_S, SILENT_S, URL
from h3serve.client.event_lines import EventLines
from h3serve.client.part_file import PartFile
from h3serve.client.problems import ServerRefused, refusal_of
from h3serve.client.retries import AGAIN, FIRST_S, Retries
from h3serve.client.served_video import Video
from h3serve.core.request import GenerationRequest


class AsyncClient:
    """`Client` for asyncio: the same calls, errors and patience."""

    def __init__(
        self,
        url: str = URL,
        *,
        key: str | None = None,
        patience: float = PATIENCE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=SILENT_S, transport=transport)
        self._patience = patience

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connections."""
        await self._http.aclose()

    async def create(
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
        return Video.of(await self._json("POST", "/v1/videos", headers=headers, **body_of(request, more)))

    async def get(self, video_id: str) -> Video:
        """Where a video stands."""
        return Video.of(await self._json("GET", f"/v1/videos/{video_id}"))

    async def videos(self, *, limit: int = 20, after: str | None = None) -> list[Video]:
        """The newest videos of this key; `after` is the last id of the page before."""
        query = {"limit": limit, **({"after": after} if after else {})}
        return [Video.of(body) for body in (await self._json("GET", "/v1/videos", params=query))["data"]]

    async def cancel(self, video_id: str) -> Video:
        """The video, cancelled or about to be; one that has ended is refused."""
        return Video.of(await self._json("POST", f"/v1/videos/{video_id}/cancel"))

    async def delete(self, video_id: str) -> None:
        """Forgets a video and its files."""
        try:
            await self._json("DELETE", f"/v1/videos/{video_id}")
        except ServerRefused as refused:
            if refused.status != 404:  # gone: by a call whose answer was lost, or by somebody else
                raise

    async def watch(self, video_id: str) -> AsyncIterator[Video]:
        """The video at every change, until it has ended; ServerRefused if it is deleted meanwhile."""
        retries = Retries(self._patience)
        while True:
            try:
                async with self._http.stream("GET", f"/v1/videos/{video_id}/events") as reply:
                    if reply.status_code in AGAIN:
                        await reply.aread()
                        await asyncio.sleep(retries.next_wait(reply))
                        continue
                    await _check(reply)
                    lines = EventLines()
                    async for line in reply.aiter_lines():
                        retries.succeeded()
                        if (event := lines.take(line)) is None:
                            continue
                        name, data = event
                        if name == "deleted":
                            raise ServerRefused(404, f"video {video_id} was deleted", code="not_found")
                        yield (video := Video.of(data))
                        if video.is_final:
                            return
                await asyncio.sleep(FIRST_S)  # the server stops, and may be back
            except httpx.TransportError as error:
                await asyncio.sleep(retries.next_wait(error))

    async def wait(self, video_id: str) -> Video:
        """The video when it has ended."""
        last = [video async for video in self.watch(video_id)][-1]
        return last

    async def download(self, video_id: str, path: str | Path, *, variant: str = "video") -> Path:
        """Writes a file of a completed video; broken off, it goes on with the bytes that are missing."""
        target, retries = Path(path), Retries(self._patience)
        with PartFile(target) as part:
            while True:
                try:
                    async with self._http.stream(
                        "GET", f"/v1/videos/{video_id}/content", params={"variant": variant}, headers=part.headers
                    ) as reply:
                        if reply.status_code in AGAIN:
                            await reply.aread()
                            await asyncio.sleep(retries.next_wait(reply))
                            continue
                        await _check(reply)
                        part.begin(reply)
                        async for data in reply.aiter_bytes():
                            retries.succeeded()
                            part.take(data)
                        break
                except httpx.TransportError as error:
                    await asyncio.sleep(retries.next_wait(error))
        return target

    async def _json(self, method: str, path: str, **how: Any) -> dict[str, Any]:
        retries = Retries(self._patience)
        while True:
            try:
                reply = await self._http.request(method, path, **how)
            except httpx.TransportError as error:
                await asyncio.sleep(retries.next_wait(error))
                continue
            if reply.status_code not in AGAIN:
                break
            await asyncio.sleep(retries.next_wait(reply))
        await _check(reply)
        body: dict[str, Any] = reply.json()
        return body


async def _check(reply: httpx.Response) -> None:
    if reply.status_code >= 400:
        await reply.aread()
        raise refusal_of(reply)
