"""Pages: whole schedules come and go, shared keys stay, failures lose nothing."""

import numpy as np
import pytest
import torch

from h3serve.runtime.adaln.host_pages import PageCache, page_count
from h3serve.runtime.adaln.modulation_tables import Key, Pages, TableShape, key_of, timesteps_of

SHAPE = TableShape(layers=1, hidden=2)


def key(*times: float) -> Key:
    return key_of(np.array(times, np.float32))


def cache(count: int) -> PageCache:
    return PageCache(SHAPE, count, device=torch.device("cpu"), dtype=torch.float32)


def fill(name: Key, pages: Pages) -> None:
    for page, time in zip(pages, timesteps_of(name), strict=True):
        page.fill_(float(time))


A, B, C, D = key(0.1), key(0.2, 0.3), key(0.4), key(0.5)


def test_held_pages_are_what_was_filled() -> None:
    pages = cache(4)
    assert pages.put([A, B], fill)
    first, second = pages.find(B)
    assert first.eq(np.float32(0.2)).all() and second.eq(np.float32(0.3)).all()
    assert pages.find(C) is None


def test_the_least_recently_used_schedule_goes_whole() -> None:
    pages = cache(4)
    pages.put([A, C], fill)
    pages.put([B], fill)
    pages.touch([C, A])
    pages.put([D], fill)
    assert pages.find(B) is None and pages.find(A) and pages.find(C) and pages.find(D)
    assert pages.evictions == 1


def test_a_key_of_two_schedules_outlives_the_first() -> None:
    pages = cache(3)
    pages.put([A, C], fill)
    pages.put([A, D], fill)
    pages.put([A, key(0.9)], fill)  # three pages: the first schedule goes, the key it shares stays
    assert pages.find(C) is None and pages.find(A) and pages.find(D)
    pages.put([B, C], fill)
    assert pages.find(A) is None and pages.find(D) is None
    assert len(pages._free) == 0 and pages.num_bytes == 3 * SHAPE.values * 4


def test_a_schedule_larger_than_the_cache_changes_nothing() -> None:
    pages = cache(2)
    pages.put([A, C], fill)
    assert not pages.put([A, B], fill)
    assert pages.skips == 1 and pages.find(A) and pages.find(C)
    assert not cache(0).put([A], fill)


def test_only_missing_keys_are_filled() -> None:
    filled: list[Key] = []

    def noting(name: Key, into: Pages) -> None:
        filled.append(name)
        fill(name, into)

    pages = cache(9)
    pages.put([A, B], noting)
    pages.put([B, A], noting)
    pages.put([A, C], noting)
    assert filled == [A, B, C]


def test_a_failed_fill_is_never_visible_and_loses_no_page() -> None:
    pages = cache(4)
    pages.put([A], fill)

    def failing(name: Key, into: Pages) -> None:
        fill(name, into)
        if name == B:
            raise OSError("torn")

    with pytest.raises(OSError, match="torn"):
        pages.put([A, C, B], failing)
    assert pages.find(B) is None and pages.find(C) is None and pages.find(A)
    assert pages.put([A, C, B], fill) and pages.find(C)
    pages.put([D, B, key(0.7)], fill)  # makes room by dropping both schedules with A
    assert pages.find(A) is None


def test_memory_is_taken_as_needed() -> None:
    pages = cache(1000)
    assert pages.num_bytes == 0
    pages.put([A, B], fill)
    assert pages.num_bytes == 3 * SHAPE.values * 4


def test_clear_frees_all() -> None:
    pages = cache(3)
    pages.put([A, B], fill)
    pages.clear()
    assert pages.find(A) is None and pages.put([C, D, key(0.6)], fill)
    assert pages.evictions == 0


def test_page_count_is_the_least_of_all_ranks() -> None:
    size = SHAPE.values * 4
    of = {"limit_bytes": 10 * size, "free_bytes": 8 * size}
    assert page_count(SHAPE, torch.float32, **of, smallest=lambda n: n) == 4
    assert page_count(SHAPE, torch.float32, **of, smallest=lambda n: min(n, 2)) == 2
    assert page_count(SHAPE, torch.float32, limit_bytes=3 * size, free_bytes=-5, smallest=lambda n: n) == 0
