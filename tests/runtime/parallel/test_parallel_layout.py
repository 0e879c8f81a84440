"""Which shape is chosen, and what is refused."""

import pytest

from h3serve.core.errors import CapacityError, RequestError
from h3serve.core.estimate_work import GIB
from h3serve.core.settings import EncoderShare
from h3serve.runtime.parallel.parallel_layout import Shape, bytes_per_rank, choose_shape, encoder_parts

HEADS = 56


def test_every_rank_is_in_one_team_of_each_kind() -> None:
    shape = Shape(ulysses=2, tp=4)
    assert shape.tp_groups() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert shape.ulysses_groups() == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize(
    ("ulysses", "tp", "shape"),
    [(4, None, Shape(4, 1)), (None, 4, Shape(1, 4)), (2, None, Shape(2, 2)), (2, 2, Shape(2, 2))],
)
def test_what_is_given_is_kept(ulysses: int | None, tp: int | None, shape: Shape) -> None:
    assert choose_shape(4, ulysses, tp, heads=HEADS, free=1).shape == shape


@pytest.mark.parametrize(("free", "tp"), [(140, 1), (60, 2), (33, 8)])
def test_the_smallest_tp_that_fits(free: int, tp: int) -> None:
    choice = choose_shape(8, heads=HEADS, free=free * GIB)
    assert choice.shape == Shape(8 // tp, tp)
    assert f"tp {tp} needs" in choice.reason and f"of {free}.0 GiB" in choice.reason


def test_nothing_fits() -> None:
    with pytest.raises(CapacityError, match="even with tp 2; 24.0 GiB are free"):
        choose_shape(2, heads=HEADS, free=24 * GIB)


def test_more_ranks_need_less_each() -> None:
    needed = [bytes_per_rank(Shape(1, n)) for n in (1, 2, 4, 8)]
    assert needed == sorted(needed, reverse=True)


def test_a_replicated_encoder_needs_more_of_each() -> None:
    shape = Shape(2, 1)
    more = bytes_per_rank(shape, encoder=1) - bytes_per_rank(shape, encoder=2)
    assert more == bytes_per_rank(shape, encoder=2) - bytes_per_rank(shape, encoder=10**18) > 20 * GIB


@pytest.mark.parametrize(
    ("wanted", "ranks", "float8", "parts"),
    [
        ("auto", 4, False, 4),
        ("sharded", 8, False, 8),
        ("replicated", 4, False, 1),
        ("auto", 1, False, 1),
        ("auto", 3, False, 1),
        ("auto", 2, True, 1),
    ],
)
def test_the_encoder_is_sharded_where_it_can_be(wanted: EncoderShare, ranks: int, float8: bool, parts: int) -> None:
    assert encoder_parts(wanted, ranks, heads=8, float8=float8) == parts


@pytest.mark.parametrize(
    ("ranks", "float8", "reason"),
    [(1, False, "one GPU"), (3, False, "8 key-value heads cannot be divided by 3"), (2, True, "8-bit")],
)
def test_an_encoder_that_cannot_be_sharded_is_refused(ranks: int, float8: bool, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        encoder_parts("sharded", ranks, heads=8, float8=float8)


@pytest.mark.parametrize(
    ("gpus", "ulysses", "tp", "field"),
    [
        (0, None, None, "gpus"),
        (3, None, None, "gpus"),
        (4, 3, None, "ulysses"),
        (4, 2, 4, "ulysses"),
        (4, None, 0, "tp"),
    ],
)
def test_refused(gpus: int, ulysses: int | None, tp: int | None, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        choose_shape(gpus, ulysses, tp, heads=HEADS, free=None)
    assert caught.value.field == field
