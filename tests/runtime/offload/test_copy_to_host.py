"""Results on the CPU pass through as they are made; tests/gpu has the other half."""

from collections.abc import Iterator

import torch

from h3serve.runtime.offload.copy_to_host import own_stream, started, to_host


def test_cpu_results_are_handed_on_at_once() -> None:
    made = []

    def results() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for i in range(3):
            made.append(i)
            yield torch.full((2,), i), torch.tensor(True)

    for i, (values, flag) in enumerate(to_host(results())):
        assert made == list(range(i + 1))
        assert values.tolist() == [i, i] and bool(flag)
    assert len(made) == 3


def test_nothing_in_nothing_out() -> None:
    assert list(to_host([])) == []
    assert list(started([])) == []


def test_the_first_result_is_started_and_all_are_handed_on() -> None:
    made = []

    def results() -> Iterator[int]:
        for i in range(3):
            made.append(i)
            yield i

    begun = started(results())
    assert made == [0]
    with own_stream(torch.device("cpu")):  # nothing to do on a CPU
        assert list(begun) == [0, 1, 2]
