import random

import pytest

from h3serve.core.errors import RequestError
from h3serve.guard.case_share import machines_for, share_of, split, with_ids
from h3serve.guard.cases import Case


def case(case_id, estimate):
    request = {"task": "t2va", "prompt": "rain", "target": {"duration_seconds": 4}}
    return Case(id=case_id, request=request, partition="fl2va", gpus=1, checks=["frames"], estimate_s=estimate)


CASES = [case(f"c{i}", seconds) for i, seconds in enumerate([10, 70, 30, 30, 20, 40])]


def test_longest_first_to_the_least_loaded():
    ids = [[c.id for c in share] for share in split(CASES, 2)]
    assert ids == [["c1", "c3"], ["c5", "c2", "c4", "c0"]]


@pytest.mark.parametrize("machines", [1, 2, 3, 5, 9])
def test_each_case_runs_once_wherever_it_is_asked(machines):
    mixed = random.Random(machines).sample(CASES, len(CASES))
    shares = [share_of(mixed, number + 1, machines) for number in range(machines)]
    assert shares == split(CASES, machines)
    assert sorted(c.id for share in shares for c in share) == sorted(c.id for c in CASES)


def test_no_split_is_much_worse_than_even():
    loads = [sum(c.estimate_s for c in share) for share in split(CASES, 3)]
    assert max(loads) <= 4 / 3 * max(70, sum(c.estimate_s for c in CASES) / 3)


def test_named_cases_in_their_own_order():
    assert [c.id for c in with_ids(CASES, ["c4", "c0"])] == ["c0", "c4"]
    assert with_ids(CASES, []) == CASES


def test_machines_that_hold_a_named_case():
    assert machines_for(CASES, ["c0"], 2) == [2]
    assert machines_for(CASES, ["c0", "c1"], 2) == [1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: with_ids(CASES, ["c0", "c9"]),
        lambda: machines_for(CASES, ["c9"], 2),
        lambda: share_of(CASES, 3, 2),
        lambda: share_of(CASES, 0, 2),
        lambda: split(CASES, 0),
    ],
)
def test_unknown_ids_and_machines_are_errors(wrong):
    with pytest.raises(RequestError):
        wrong()
