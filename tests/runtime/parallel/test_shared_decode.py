"""Four ranks and one clip: one decode per host, equal pixels, and the same end for all."""

import gc
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest import MonkeyPatch

from h3serve.core.errors import MediaError
from h3serve.runtime.parallel import shared_decode as module
from h3serve.runtime.parallel.process_group import Ranks
from h3serve.runtime.parallel.shared_decode import Pixels, shared_decode
from tests.rank_pool import Pool, pool

SHAPE = (24, 128, 128, 3)
CLIP = int(np.prod(SHAPE))
TWO_HOSTS = ["a", "a", "b", "b"]


@pytest.fixture(scope="module")
def four() -> Iterator[Pool]:
    with pool(ulysses=4) as ranks:
        yield ranks


def paint(out: Pixels) -> None:
    out[:] = np.arange(out.size, dtype=np.uint64).reshape(out.shape) * 2654435761 >> 13


def held() -> tuple[int, int]:
    """Open descriptors, and mappings of clips, of this process."""
    maps = Path("/proc/self/maps").read_text().count("h3serve-video")
    return len(list(Path("/proc/self/fd").iterdir())), maps


def attempt(
    ranks: Ranks, *, hosts: list[str] | None = None, fails_on: int = -1, broken: str = "", on: tuple[int, ...] = ()
) -> dict[str, Any]:
    """One shared decode; `broken` names what is taken away on the ranks `on`."""
    decodes = 0

    def fill(out: Pixels) -> None:
        nonlocal decodes
        decodes += 1
        paint(out)
        if ranks.rank == fails_on:
            raise MediaError("conditions[0]", "cat.mp4", "it is damaged")

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(12, "refused")

    before, began, error, equal = held(), time.monotonic(), None, False
    with MonkeyPatch.context() as patch:
        if ranks.rank in on:
            if broken == "memory files":
                patch.setattr(os, "memfd_create", refuse)
            elif broken == "mapping":
                patch.setattr(mmap, "mmap", refuse)
            elif broken == "proc":
                patch.setattr(module, "OFFER", "/proc/0/{process}/{descriptor}")
        try:
            clip = shared_decode(SHAPE, fill, ranks.world, host=hosts[ranks.rank] if hosts else None)
            expected = np.empty(SHAPE, np.uint8)
            paint(expected)
            equal = np.array_equal(clip, expected) and clip.flags.writeable
            del clip
        except Exception as caught:
            error = type(caught), str(caught)
    gc.collect()
    seconds = time.monotonic() - began
    return {"decodes": decodes, "equal": equal, "error": error, "seconds": seconds, "left": (before, held())}


def check(answers: list[dict[str, Any]], *, decodes: list[int], error: type[Exception] | None = None) -> None:
    """All ended alike and quickly, and hold nothing."""
    assert [a["decodes"] for a in answers] == decodes
    assert len({a["error"] for a in answers}) == 1, answers
    for answer in answers:
        assert answer["seconds"] < 5
        assert answer["left"][0] == answer["left"][1]
        assert answer["equal"] is (error is None), answer
        assert (answer["error"] or [None])[0] is error


def run(ranks: Pool, **how: Any) -> list[dict[str, Any]]:
    return ranks.run(_attempt, how)


def _attempt(ranks: Ranks, how: dict[str, Any]) -> dict[str, Any]:
    return attempt(ranks, **how)


def test_one_decode_on_one_host(four: Pool) -> None:
    check(run(four), decodes=[1, 0, 0, 0])


def test_one_decode_on_each_of_two_hosts(four: Pool) -> None:
    check(run(four, hosts=TWO_HOSTS), decodes=[1, 0, 1, 0])


@pytest.mark.parametrize("hosts", [None, TWO_HOSTS])
def test_first_rank_fails(four: Pool, hosts: list[str] | None) -> None:
    check(run(four, hosts=hosts, fails_on=0), decodes=[1, 0, 1 if hosts else 0, 0], error=MediaError)


def test_other_host_fails(four: Pool) -> None:
    check(run(four, hosts=TWO_HOSTS, fails_on=2), decodes=[1, 0, 1, 0], error=MediaError)


def test_mapping_refused_on_one_rank(four: Pool) -> None:
    """The first rank keeps its pixels; all others decode, those that had mapped too."""
    check(run(four, broken="mapping", on=(2,)), decodes=[1, 1, 1, 1])


def test_proc_blocked(four: Pool) -> None:
    check(run(four, broken="proc", on=(0,)), decodes=[1, 1, 1, 1])


def test_no_memory_files_anywhere(four: Pool) -> None:
    check(run(four, broken="memory files", on=(0, 1, 2, 3)), decodes=[1, 1, 1, 1])


def test_no_memory_files_on_one_of_two_hosts(four: Pool) -> None:
    check(run(four, hosts=TWO_HOSTS, broken="memory files", on=(2,)), decodes=[1, 1, 1, 1])


def test_a_rank_that_fails_when_left_alone_fails_all(four: Pool) -> None:
    check(run(four, broken="proc", on=(0,), fails_on=3), decodes=[1, 1, 1, 1], error=MediaError)


def test_the_pool_is_usable_after_all_that(four: Pool) -> None:
    check(run(four), decodes=[1, 0, 0, 0])


def _private_copies(ranks: Ranks) -> list[bool]:
    clip = shared_decode(SHAPE, paint, ranks.world)
    expected = clip[-1].copy()
    clip[0] = ranks.rank
    ranks.world.gather_json(None)
    return [bool((clip[0] == ranks.rank).all()), np.array_equal(clip[-1], expected)]


def test_what_one_rank_writes_no_other_sees(four: Pool) -> None:
    assert four.run(_private_copies) == [[True, True]] * 4


def _memory(ranks: Ranks, shape: tuple[int, ...]) -> dict[str, int]:
    """Bytes: this process's share of all memory (Pss), before and with the clip; what the decode itself copied."""
    own: list[int] = []

    def fill(out: Pixels) -> None:
        before = _smaps("Anonymous")
        out[:] = 7
        own.append(_smaps("Anonymous") - before)

    ranks.world.gather_json(None)
    gc.collect()
    before = _smaps("Pss")
    ranks.world.gather_json(None)
    clip = shared_decode(shape, fill, ranks.world)
    total = int(clip[:, ::8].sum(dtype=np.int64))  # touches every page
    ranks.world.gather_json(None)
    added = _smaps("Pss") - before
    ranks.world.gather_json(None)
    return {"added": added, "copied": own[0] if own else 0, "sum": total}


def _smaps(what: str) -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:"))


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the kernel does not tell shares of memory")
def test_another_rank_adds_less_than_a_twentieth_of_the_clip(four: Pool) -> None:
    shape = (48, 256, 512, 3)
    clip = int(np.prod(shape))
    answers = four.run(_memory, shape)
    together = sum(a["added"] for a in answers)
    assert clip <= together < clip * (1 + 3 * 0.05), together / clip
    assert answers[0]["copied"] < 0.05 * clip  # decoded straight into the shared pages
    assert len({a["sum"] for a in answers}) == 1


def _keeps_a_view(ranks: Ranks) -> tuple[int, bool]:
    kept: list[Pixels] = []

    def fill(out: Pixels) -> None:
        kept.append(out)
        paint(out)

    clip = shared_decode(SHAPE, fill, ranks.world)
    expected = np.empty(SHAPE, np.uint8)
    paint(expected)
    return len(kept), np.array_equal(clip, expected)


def test_pages_that_somebody_can_still_write_are_not_shared(four: Pool) -> None:
    assert four.run(_keeps_a_view) == [(2, True), (1, True), (1, True), (1, True)]
