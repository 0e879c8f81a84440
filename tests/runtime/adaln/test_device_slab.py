"""Slots: who makes room, who never does, what a failure leaves."""

import numpy as np
import pytest
import torch

from h3serve.core.errors import CapacityError
from h3serve.runtime.adaln.device_slab import Slab
from h3serve.runtime.adaln.modulation_tables import Key, TableShape, key_of, schedule_digest, timesteps_of

SHAPE = TableShape(layers=2, hidden=4)
CPU = torch.device("cpu")


def key(*times: float) -> Key:
    return key_of(np.array(times, np.float32))


def slab(slots: int, limit: int = 100) -> Slab:
    return Slab(SHAPE, slots, limit=limit, device=CPU, dtype=torch.float32)


def put(tables: Slab, *keys: Key) -> None:
    with tables.using(keys), tables.filling(keys) as slots:
        for name, taken in slots.items():
            for slot, time in zip(taken, timesteps_of(name), strict=True):
                tables.put(slot, torch.full((SHAPE.values,), float(time)))


def test_keys_are_exact_bit_patterns() -> None:
    nearly = np.nextafter(np.float32(0.5), np.float32(1))
    assert key(0.5) != key(float(nearly)) and key(0.0) != key(-0.0)
    assert timesteps_of(key(0.25, 0.5)).tolist() == [0.25, 0.5]
    assert schedule_digest([key(0.5), key(0.1)]) == schedule_digest([key(0.1), key(0.5), key(0.5)])
    assert schedule_digest([key(0.5, 0.1)]) != schedule_digest([key(0.5), key(0.1)])


def test_the_least_recently_used_key_makes_room_alone() -> None:
    tables = slab(4)
    put(tables, key(0.1), key(0.2), key(0.3, 0.4))
    assert tables.find(key(0.1))  # now 0.2 is the oldest
    put(tables, key(0.5))
    assert tables.keys == (key(0.3, 0.4), key(0.1), key(0.5)) and tables.evictions == 1
    slots = tables.find(key(0.3, 0.4))
    assert slots and tables.modulation().blocks[0, 3 * slots[1] + 2].eq(np.float32(0.4)).all()


def test_keys_in_use_stay() -> None:
    tables = slab(2)
    put(tables, key(0.1), key(0.2))
    with tables.using([key(0.1)]):
        put(tables, key(0.3))
        assert tables.find(key(0.1)) and tables.find(key(0.2)) is None
    put(tables, key(0.4))
    put(tables, key(0.5))
    assert tables.find(key(0.1)) is None


def test_addresses_stay_and_growth_keeps_what_is_held() -> None:
    tables = slab(2)
    put(tables, key(0.1))
    before = tables.modulation().blocks.data_ptr()
    put(tables, key(0.2))
    put(tables, key(0.3))
    assert tables.modulation().blocks.data_ptr() == before and tables.moves == 0
    put(tables, key(0.4, 0.5, 0.6))
    assert tables.slots == 3 and tables.moves == 1
    tables = slab(2)
    put(tables, key(0.1))
    with tables.using([key(0.1)]):
        put(tables, key(0.4, 0.5))
        slots = tables.find(key(0.1))
        assert slots and tables.modulation().final[slots[0]].eq(np.float32(0.1)).all()


def test_a_request_beyond_the_limit_is_refused_before_anything_is_evicted() -> None:
    tables = slab(2, limit=3)
    put(tables, key(0.1), key(0.2))
    with pytest.raises(CapacityError, match="4 timesteps of .* may hold 3"), tables.using([key(0.3, 0.4, 0.5, 0.6)]):
        pass
    assert tables.keys == (key(0.1), key(0.2)) and tables.evictions == 0
    with (
        tables.using([key(0.1), key(0.2)]),
        pytest.raises(CapacityError, match="4 timesteps"),
        tables.using([key(0.3, 0.4)]),
    ):
        pass


def test_a_failed_fill_holds_nothing_and_leaks_no_slot() -> None:
    tables = slab(3)
    put(tables, key(0.1))
    with pytest.raises(OSError), tables.using([key(0.2, 0.3)]), tables.filling([key(0.2, 0.3)]):
        raise OSError
    assert tables.keys == (key(0.1),)
    put(tables, key(0.4, 0.5))
    assert tables.find(key(0.1)) and tables.evictions == 0


def test_modulation_rows_and_pages_round_trip() -> None:
    tables = slab(3)
    page = torch.arange(SHAPE.values, dtype=torch.float32)
    with tables.using([key(0.5)]), tables.filling([key(0.5)]) as slots:
        (slot,) = slots[key(0.5)]
        tables.put(slot, page)
    out = torch.empty_like(page)
    tables.get(slot, out)
    assert torch.equal(out, page)
    blocks = page[: SHAPE.layers * SHAPE.block].view(SHAPE.layers, 3, 6, SHAPE.hidden)
    assert torch.equal(tables.modulation().blocks[:, 3 * slot : 3 * slot + 3], blocks)


def test_clear() -> None:
    tables = slab(2)
    put(tables, key(0.1), key(0.2))
    tables.clear()
    assert tables.keys == ()
    put(tables, key(0.3, 0.4))
    assert tables.evictions == 0
