"""Teams of four ranks exchange what they say they exchange."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from h3serve.runtime.parallel.process_group import Ranks
from tests.rank_pool import Pool, pool


@pytest.fixture(scope="module")
def four() -> Iterator[Pool]:
    with pool(ulysses=2, tp=2) as ranks:
        yield ranks


def _exchange(ranks: Ranks) -> dict[str, Any]:
    mine = torch.tensor([ranks.rank])
    return {
        "sum": ranks.tp.all_reduce(mine.clone()).tolist(),
        "all": ranks.ulysses.all_gather(mine).tolist(),
        "swap": ranks.ulysses.all_to_all(torch.tensor([[10 * ranks.rank], [10 * ranks.rank + 1]])).flatten().tolist(),
        "json": ranks.world.gather_json({"name": "x" * ranks.rank}),
    }


def test_collectives(four: Pool) -> None:
    answers = four.run(_exchange)
    assert [a["sum"] for a in answers] == [[1], [1], [5], [5]]
    assert [a["all"] for a in answers] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert [a["swap"] for a in answers] == [[0, 20], [10, 30], [1, 21], [11, 31]]
    assert answers[3]["json"] == [{"name": "x" * rank} for rank in range(4)]


def _listening(ranks: Ranks) -> list[str]:
    """Local addresses of this process's listening sockets, as /proc writes them."""
    from pathlib import Path

    own = {link.readlink().name for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own]


def test_nothing_listens_on_an_outer_interface(four: Pool) -> None:
    for addresses in four.run(_listening):
        assert set(addresses) <= {"0100007F"}
