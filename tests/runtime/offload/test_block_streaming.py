"""Blocks that come and go give the bits of blocks that stay, in any order, with any pool."""

from pathlib import Path

import pytest
import torch
from torch import nn

from h3serve.models.module_tensors import empty, set_tensors
from h3serve.runtime.offload.block_streaming import Prefetcher, Streamed, spread
from h3serve.runtime.offload.weight_store import FileStore, HostStore
from tests.runtime.stores import block_groups, shapes, tiny_index, write_tiny

CPU = torch.device("cpu")


class Stack(nn.Module):
    """Stands for a network: calls its MLPs one after another."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Memory:
    """A store over a module's blocks that counts what is sent."""

    def __init__(self, blocks: nn.ModuleList) -> None:
        from h3serve.weights.files.memory_buffers import Flat

        self.tensors = [{n: p.detach().clone() for n, p in block.named_parameters()} for block in blocks]
        self.flats = [Flat.of({n: (tuple(t.shape), t.dtype) for n, t in group.items()}) for group in self.tensors]
        self.sent: list[int] = []

    def send(self, group: int, target: torch.Tensor) -> None:
        self.sent.append(group)
        for name, view in self.flats[group].views(target).items():
            view.copy_(self.tensors[group][name])

    def close(self) -> None: ...


@pytest.fixture
def stack() -> Stack:
    torch.manual_seed(0)
    return Stack(5).requires_grad_(False)


@pytest.mark.parametrize("depth", [0, 1, 2, 9])
@pytest.mark.parametrize("resident", [0, 2, 5])
@pytest.mark.parametrize("cyclic", [True, False])
def test_same_bits(stack: Stack, depth: int, resident: int, cyclic: bool) -> None:
    x = torch.randn(3, 8)
    expected = stack(x)
    store = Memory(stack.blocks)
    empty(stack)
    prefetcher = Prefetcher(store, CPU)
    with Streamed(stack.blocks, prefetcher, first_group=0, depth=depth, resident=resident, cyclic=cyclic) as streamed:
        for _ in range(3):
            assert torch.equal(stack(x), expected)
        assert len(streamed._slots) == min(depth + 1, 5 - resident)
    prefetcher.close()
    assert all(p.is_meta for p in stack.parameters())
    assert not any(block._forward_pre_hooks for block in stack.blocks)


def test_each_pass_sends_each_moving_block_once(stack: Stack) -> None:
    store = Memory(stack.blocks)
    prefetcher = Prefetcher(store, CPU)
    with Streamed(stack.blocks, prefetcher, first_group=0, depth=1, cyclic=True):
        stack(torch.randn(1, 8))
        stack(torch.randn(1, 8))
    prefetcher.close()
    assert store.sent[:10] == [0, 1, 2, 3, 4] * 2 and len(store.sent) <= 11


def test_any_order_and_repeats(stack: Stack) -> None:
    x = torch.randn(2, 8)
    order = [3, 3, 0, 4, 2, 2, 1, 4]
    expected = [stack.blocks[i](x) for i in order]
    prefetcher = Prefetcher(Memory(stack.blocks), CPU)
    with Streamed(stack.blocks, prefetcher, first_group=0, depth=1):
        for i, value in zip(order, expected, strict=True):
            assert torch.equal(stack.blocks[i](x), value)
    prefetcher.close()


def test_a_failing_read_reaches_the_caller_and_leaves_nothing(stack: Stack) -> None:
    store = Memory(stack.blocks)
    send = store.send

    def failing(group: int, target: torch.Tensor) -> None:
        if group == 2:
            raise OSError("the disk is gone")
        send(group, target)

    store.send = failing  # type: ignore[method-assign]
    prefetcher = Prefetcher(store, CPU)
    with (
        pytest.raises(OSError, match="the disk is gone"),
        Streamed(stack.blocks, prefetcher, first_group=0, depth=1),
    ):
        stack(torch.randn(1, 8))
    prefetcher.close()
    assert not any(block._forward_pre_hooks for block in stack.blocks)


@pytest.mark.parametrize("pinned_copy", [False, True])
def test_a_transformer_streamed_from_its_files(tmp_path: Path, pinned_copy: bool) -> None:
    network = write_tiny(tmp_path).transformer
    held, index = shapes(), tiny_index(tmp_path)
    files = FileStore(
        index,
        block_groups(),
        shape_of=lambda entry: held[entry.target],
        dtype_of=lambda entry: index.tensors[entry.sources[0]].dtype,
        device=CPU,
    )
    store = HostStore(files.flats, files.send, pinned=False) if pinned_copy else files
    kept = {name: p.clone() for name, p in network.blocks.named_parameters()}
    empty(network.blocks)
    prefetcher = Prefetcher(store, CPU)
    seen = {}
    with Streamed(network.blocks, prefetcher, first_group=0, depth=1):
        for number, block in enumerate(network.blocks):
            hook = next(iter(block._forward_pre_hooks.values()))
            hook(block, ())
            seen |= {f"{number}.{n}": p.clone() for n, p in block.named_parameters()}
    prefetcher.close()
    files.close()
    assert set(seen) == set(kept) and all(torch.equal(seen[n], kept[n]) for n in kept)


def test_spread_is_even() -> None:
    assert spread(0, 5) == frozenset()
    assert spread(5, 5) == frozenset(range(5)) == spread(9, 5)
    assert sorted(spread(2, 8)) == [2, 6]


def test_install_and_empty_reach_nested_parameters() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    empty(module)
    assert module[0].weight.is_meta
    set_tensors(module, {"0.weight": torch.ones(2, 2)})
    assert not module[0].weight.is_meta and module[0].bias.is_meta
