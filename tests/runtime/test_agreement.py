"""What ranks agree on is the answer for all of them, not each one's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from h3serve.core.errors import CapacityError
from h3serve.core.settings import EngineSettings
from h3serve.pipeline.engine import load_engine
from h3serve.runtime.parallel.process_group import Ranks
from h3serve.runtime.parallel.sharding import ONE, RankShare, Share
from tests.rank_pool import Pool, pool


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    with pool(ulysses=2) as ranks:
        yield ranks


def _counts(ranks: Ranks, counts: list[int]) -> tuple[int, int]:
    share = RankShare(ranks)
    return share.smallest(counts[ranks.rank]), share.largest(counts[ranks.rank])


def _all_have(ranks: Ranks, held: list[bool]) -> bool:
    return RankShare(ranks).all_have(held[ranks.rank])


@pytest.mark.parametrize("counts", [[3, 7], [7, 3]])
def test_the_least_and_the_most_of_all(two: Pool, counts: list[int]) -> None:
    assert two.run(_counts, counts) == [(3, 7)] * 2


@pytest.mark.parametrize(("held", "all_have"), [([True, True], True), ([True, False], False), ([False, True], False)])
def test_what_one_lacks_none_has(two: Pool, held: list[bool], all_have: bool) -> None:
    assert two.run(_all_have, held) == [all_have] * 2


def test_one_rank_agrees_with_itself() -> None:
    assert (ONE.smallest(3), ONE.largest(3), ONE.all_have(True), ONE.all_have(False)) == (3, 3, True, False)


class BesideAPoorRank(Share):
    """Of two ranks: the other one has `room` bytes of device and host memory and for two pages, and holds nothing."""

    room = 2**40

    def smallest(self, count: int) -> int:
        return min(count, self.room) if count > 2**20 else min(count, 2)

    def all_have(self, held: bool) -> bool:
        return False


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_loaded_engine_keeps_to_what_its_ranks_agree_on(tmp_path: Path, on_disk: bool) -> None:
    settings = EngineSettings("demo-random", device="cpu", encodings_cache=str(tmp_path) if on_disk else None)
    engine = load_engine(settings, BesideAPoorRank())
    assert engine.modulations["fl2va"].pages.count == 2
    made: list[int] = []

    def make() -> dict[str, torch.Tensor]:
        made.append(1)
        return {"x": torch.ones(1)}

    for _ in range(2):  # held here at the second time, and not by the other: both make it again
        engine.encodings.get("a", make)
    assert len(made) == 2


def test_memory_that_one_rank_lacks_all_lack() -> None:
    share = BesideAPoorRank()
    share.room = 2**21
    with pytest.raises(CapacityError):
        load_engine(EngineSettings("demo-random", device="cpu"), share)
