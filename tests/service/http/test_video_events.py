"""Who hears what in the stream of all videos."""

import asyncio
import json

from h3serve.service.http.context import Context
from h3serve.service.http.video_events import _stream_all
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.jobs.live_progress import Snapshot
from tests.service.client import context_of
from tests.service.make import put


async def told(context: Context, owner: str, act: object) -> list[tuple[str, str]]:
    """(event, id) of what an owner hears until something called `last` happens to one of their videos."""
    seen: list[tuple[str, str]] = []
    async for text in _stream_all(context, owner):
        if text.startswith(":"):
            act()  # type: ignore[operator]
            continue
        name, _, data = text.strip().partition("\n")
        seen.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))["id"]))
        if seen[-1][0] == "deleted":
            return seen
    raise AssertionError(seen)


def test_a_key_hears_of_its_own_videos_only(store: JobStore, folder: DataFolder) -> None:
    context = context_of(store, folder)
    shown = {"width": 64, "height": 64, "seconds": 4.5}
    bobs, anns = put(store, owner="bob", plan=shown), put(store, owner="ann", plan=shown)

    def act() -> None:
        for job in (bobs, anns):
            context.board.update(job, Snapshot("denoise", 1, 4, None))
        for job in (bobs, anns):
            store.delete(job.id)
            context.board.ring(job)

    async def main() -> list[tuple[str, str]]:
        return await asyncio.wait_for(told(context, "ann", act), 20)

    heard = asyncio.run(main())
    assert {of for _, of in heard} == {anns.id} and heard[-1] == ("deleted", anns.id)
