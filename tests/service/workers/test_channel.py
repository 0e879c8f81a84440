import socket
import threading
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3serve.service.workers.channel import Channel, Closed, decode, encode
from h3serve.service.workers.messages import KINDS, Beat, JobProgress, RunJob

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(),
    "int": st.integers(),
    "float": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "str | None": st.none() | st.text(),
    "float | None": st.none() | st.floats(allow_nan=False),
    "list[str]": st.lists(st.text()),
    "Json": st.dictionaries(st.text(), json_values, max_size=4),
    "Json | None": st.none() | st.dictionaries(st.text(), json_values, max_size=4),
}


def messages() -> st.SearchStrategy[Any]:
    kinds = [st.builds(k, **{f.name: BY_TYPE[str(f.type)] for f in fields(k)}) for k in KINDS.values()]
    return st.one_of(kinds)


@given(messages())
def test_every_field_of_every_message_arrives(message: Any) -> None:
    assert decode(encode(message)) == message
    assert encode(message).count(b"\n") == 1


def test_every_message_is_listed_and_frozen() -> None:
    for name, kind in KINDS.items():
        assert name == kind.__name__ and is_dataclass(kind)
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


@pytest.mark.parametrize("line", [b'["Beat", {"stage": "", "idle_s": 0, "more": 1}]', b'["No", {}]'])
def test_an_unknown_field_or_kind_is_an_error(line: bytes) -> None:
    with pytest.raises((TypeError, KeyError)):
        decode(line)


def pair() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair()
    return Channel(ours), Channel(theirs)


def test_many_senders_one_receiver_and_large_messages() -> None:
    ours, theirs = pair()
    long = RunJob("j", 1, {"prompt": "x" * 300_000}, "in", "out")

    def send() -> None:
        for step in range(50):
            ours.send(JobProgress("j", 1, "denoise", step, 50, None))

    threads = [threading.Thread(target=send) for _ in range(4)]
    threads.append(threading.Thread(target=ours.send, args=(long,)))
    for thread in threads:
        thread.start()
    got = [theirs.receive(5) for _ in range(201)]
    for thread in threads:
        thread.join()
    assert long in got and sum(isinstance(m, JobProgress) for m in got) == 200
    assert theirs.receive(0) is None


def test_the_end_of_the_other_side_is_noticed() -> None:
    ours, theirs = pair()
    theirs.send(Beat("", 0.0))
    theirs.close()
    assert ours.receive(1) == Beat("", 0.0)
    with pytest.raises(Closed):
        ours.receive(1)
    with pytest.raises(Closed):
        for _ in range(100):
            ours.send(Beat("", 0.0))
