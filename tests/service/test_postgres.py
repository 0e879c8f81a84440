"""The store's promises on PostgreSQL: the same tests, on a server of their own."""

from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, delete

from h3serve.core.errors import H3Error
from h3serve.service.store import JobStore
from h3serve.service.tables import jobs
from tests.service.postgres import postgres
from tests.service.test_claim import *  # noqa: F403
from tests.service.test_recovery import *  # noqa: F403
from tests.service.test_retention import *  # noqa: F403
from tests.service.test_store import (  # noqa: F401
    test_a_final_state_is_written_once,
    test_a_queued_job_cannot_complete,
    test_cancel_queued_is_immediate_and_running_wins_over_completion,
    test_counts_name_every_state,
    test_delete_hides_a_running_job_at_once,
    test_idempotency,
    test_owners_see_their_own,
    test_pages_cover_every_job_once,
    test_racing_ends_leave_exactly_one,
    test_the_bound_holds_under_many_writers,
    test_the_queue_is_bounded_and_says_whose_bound,
)


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
