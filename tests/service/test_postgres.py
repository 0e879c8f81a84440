"""The store's promises on PostgreSQL: the same tests, on a server of their own."""

from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, delete

from h3serve.core.errors import H3Error
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.database import jobs
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.jobs.ownership import OwnershipWatch
from tests.service.client import T2VA, client_of, context_of
from tests.service.jobs.test_claim import *  # noqa: F403
from tests.service.jobs.test_retention import *  # noqa: F403
from tests.service.jobs.test_retry import *  # noqa: F403
from tests.service.postgres import postgres


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres() as server:
        yield server.url


@pytest.fixture
def store(url: str) -> Iterator[JobStore]:
    store = JobStore(url)
    yield store
    store.close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(delete(jobs))
    engine.dispose()


def test_one_server_per_database(url: str, store: JobStore) -> None:
    with pytest.raises(H3Error, match="another server is using the job database"):
        JobStore(url)
    store.close()
    again = JobStore(url)
    again.close()


def test_zero_bytes_reach_no_column(url: str, folder: DataFolder) -> None:
    """PostgreSQL has no text with a zero byte in it: every such request is refused, or its text kept as JSON."""
    store = JobStore(url)
    assert store.ownership is not None
    watch = OwnershipWatch(store.ownership, pytest.fail)
    watch.start()
    try:
        context = context_of(store, folder, webhook_secret=folder.root / "secret")
        with client_of(context) as http:
            for method, path in (
                ("GET", "/v1/videos/video_%00"),
                ("DELETE", "/v1/videos/video_%00"),
                ("POST", "/v1/videos/%00/cancel"),
                ("GET", "/v1/videos/%00/content"),
                ("GET", "/v1/videos/%00/events"),
                ("GET", "/v1/videos?after=%00"),
                ("GET", "/v1/models/%00"),
            ):
                assert http.request(method, path).status_code == 404, path
            for name, value in {"model": "\0", "webhook_url": "http://example.com/\0", "task": "\0", "\0": 1}.items():
                assert 400 <= http.post("/v1/videos", json={**T2VA, name: value}).status_code < 500, name
            assert http.post("/v1/videos", json={**T2VA, "prompt": "a\0b"}).status_code in (200, 400)
            assert http.post("/v1/plan", json={**T2VA, "user": "\0"}).status_code == 200
            assert http.get("/v1/videos").status_code == 200
    finally:
        watch.stop.set()
        watch.join()
        store.close()
