"""No key fills the queue for the others."""

from collections import Counter

import pytest

from h3serve.service.http.api_keys import Caller, KeyRing, hash_key
from h3serve.service.jobs.admission import Admission, QueueFull
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job_store import JobStore
from tests.service.client import T2VA, client_of, context_of


def fill(admission: Admission, owner: str, waiting: Counter[str]) -> int:
    """How many more jobs of `owner` are admitted."""
    number = 0
    try:
        while True:
            admission.check(owner, waiting)
            waiting[owner] += 1
            number += 1
    except QueueFull:
        return number


def test_half_of_the_queue_is_kept_in_equal_shares() -> None:
    """100 places, 5 keys: 10 are kept for each, so one alone gets 60 and the others still 10 each."""
    admission, waiting = Admission(100, dict.fromkeys("abcde")), Counter[str]()
    assert [fill(admission, key, waiting) for key in "abcde"] == [60, 10, 10, 10, 10]
    waiting["a"] -= 5  # whose places are free again belongs to whoever comes
    assert fill(admission, "b", waiting) == 5


def test_a_key_gets_no_more_kept_than_it_may_have() -> None:
    """Of b's share of 25 only 3 are kept: 100 - 3 - 25 are a's."""
    admission, waiting = Admission(150, {"a": None, "b": 3, "c": None}), Counter[str]()
    assert [fill(admission, key, waiting) for key in "abc"] == [150 - 3 - 25, 3, 25]


@pytest.mark.parametrize("keys", [{}, {"": None}, {"a": None}])
def test_who_is_alone_has_the_whole_queue(keys: dict[str, None]) -> None:
    assert fill(Admission(100, keys), "a", Counter()) == 100


def test_more_keys_than_places() -> None:
    admission, waiting = Admission(3, dict.fromkeys("abcde")), Counter[str]()
    assert [fill(admission, key, waiting) for key in "abcde"] == [1, 1, 1, 0, 0]


def test_jobs_of_a_key_that_is_gone_count() -> None:
    admission, waiting = Admission(10, dict.fromkeys("ab")), Counter({"gone": 8})
    assert [fill(admission, key, waiting) for key in "ab"] == [2, 0]


def test_over_http(store: JobStore, folder: DataFolder) -> None:
    ring = KeyRing(tuple(Caller(name, hash_key(name)) for name in ("ann", "bob")))
    http = client_of(context_of(store, folder, ring, max_queued=8))

    def create(key: str) -> tuple[int, str]:
        reply = http.post("/v1/videos", json=T2VA, headers={"Authorization": f"Bearer {key}"})
        return reply.status_code, "" if reply.status_code == 200 else reply.json()["error"]["message"]

    assert [create("ann")[0] for _ in range(8)] == [200] * 6 + [429] * 2
    assert "kept for other keys" in create("ann")[1]
    assert [create("bob")[0] for _ in range(3)] == [200, 200, 429]
    assert create("bob")[1].startswith("the server already has 8")
