"""Four ranks, one request: whoever fails, wherever, all end with the same error and can go on."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pytest import MonkeyPatch

from h3serve.core.errors import Cancelled, RankError, RequestError, WorkerError
from h3serve.runtime.parallel import joint_request as module
from h3serve.runtime.parallel.joint_request import Together
from h3serve.runtime.parallel.process_group import Ranks
from tests.rank_pool import Pool, pool

WRONG = RequestError("seed", -1, "0 or more")


@pytest.fixture(scope="module")
def four() -> Iterator[Pool]:
    with pool(ulysses=2, tp=2) as ranks:
        ranks.run(_begin)
        yield ranks


def _begin(ranks: Ranks) -> None:
    ranks.together = Together(ranks)


def _sum(ranks: Ranks) -> float:
    return float(ranks.world.all_reduce(torch.ones(3)).sum())


def _request(ranks: Ranks, errors: dict[int, Exception], where: str) -> dict[str, Any]:
    """A request of two sums; the ranks in `errors` fail before, between or after them."""
    began, raised = time.monotonic(), None
    try:
        with ranks.together.request():
            for place in ("before", "between", "after"):
                if where == place and ranks.rank in errors:
                    raise errors[ranks.rank]
                if place != "after":
                    _sum(ranks)
    except Exception as error:
        raised = error
    return {"error": raised, "seconds": time.monotonic() - began, "then": _sum(ranks)}


def check(answers: list[dict[str, Any]], error: type[Exception], text: str) -> None:
    for answer in answers:
        assert type(answer["error"]) is error and str(answer["error"]) == text, answers
        assert answer["seconds"] < 10
        assert answer["then"] == 12.0  # the groups are whole again


@pytest.mark.parametrize("where", ["before", "between", "after"])
@pytest.mark.parametrize("rank", [0, 3])
def test_an_error_on_one_rank_is_everybodys(four: Pool, rank: int, where: str) -> None:
    check(four.run(_request, {rank: WRONG}, where), RequestError, str(WRONG))


def test_cancelling_is_an_error_of_the_first_rank(four: Pool) -> None:
    check(four.run(_request, {0: Cancelled("stopped")}, "between"), Cancelled, "stopped")


def test_any_exception_ends_the_request(four: Pool) -> None:
    answers = four.run(_request, {2: KeyError("x")}, "between")
    assert isinstance(answers.pop(2)["error"], KeyError)  # the rank itself keeps its own
    check(answers, RankError, "rank 2: KeyError: 'x'")


def test_of_several_errors_one_counts(four: Pool) -> None:
    errors = {rank: Cancelled(f"by {rank}") for rank in range(4)}
    texts = {str(answer["error"]) for answer in four.run(_request, errors, "before")}
    assert len(texts) == 1 and texts < {f"by {rank}" for rank in range(4)}


def test_without_errors_nothing_is_connected_anew(four: Pool) -> None:
    for before, after in four.run(_same_group):
        assert before == after


def _same_group(ranks: Ranks) -> tuple[int, int]:
    before = id(ranks.world.group)
    assert _request(ranks, {}, "")["error"] is None
    return before, id(ranks.world.group)


def _message(ranks: Ranks, message: Any) -> Any:
    if ranks.leads:
        ranks.together.announce(message)
    heard = message if ranks.leads else ranks.together.listen()
    with ranks.together.request():
        return heard


def test_what_the_first_rank_announces_all_hear(four: Pool) -> None:
    for message in ({"prompt": "ä" * 100, "seed": 2**53}, "stop"):
        assert four.run(_message, message) == [message] * 4


def _keys(ranks: Ranks) -> int:
    return ranks.store.num_keys()


def test_the_store_does_not_grow(four: Pool) -> None:
    counts = []
    for _ in range(4):
        four.run(_message, "x" * 1000)
        counts.append(four.run(_keys)[0])
    assert counts[-1] == counts[0], counts


def _lose_one(ranks: Ranks) -> dict[str, Any]:
    with MonkeyPatch.context() as patch:
        patch.setattr(module, "SETTLE_S", 1.0)
        together, raised = Together(ranks), ""
        try:
            with together.request():
                if ranks.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                _sum(ranks)
        except WorkerError as error:
            raised = str(error)
    return {"broken": together.broken, "error": raised}


def test_a_lost_rank_breaks_the_replica() -> None:
    with pool(ulysses=2) as two:
        two.pipes[0].send((_lose_one, ()))
        two.pipes[1].send((_lose_one, ()))
        assert two.pipes[0].poll(10)
        answer = two.pipes[0].recv()
    assert answer == {"broken": True, "error": "a rank did not leave a failed request within 1 s"}
