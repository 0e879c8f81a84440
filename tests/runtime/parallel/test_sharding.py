"""Ulysses, tensor parallelism and both give one rank's velocities, whatever the length of the sequence."""

from collections.abc import Iterator

import pytest
import torch

from h3serve.core.errors import RequestError
from h3serve.runtime.parallel.parallel_layout import Shape
from h3serve.runtime.parallel.process_group import ProcessGroup, Ranks
from h3serve.runtime.parallel.sequence_parallel import check_heads
from h3serve.runtime.parallel.tensor_parallel import shard_denoiser
from tests.models.tiny_transformer import Packed, tiny_request
from tests.rank_pool import Pool, pool
from tests.runtime.ranked import FOUR_HEADS, cut, whole

SHAPES = [Shape(2, 1), Shape(4, 1), Shape(1, 2), Shape(1, 4), Shape(2, 2)]


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def ranks(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with pool(request.param.ulysses, request.param.tp) as processes:
        yield processes


def shortened(rows: int) -> Packed:
    """tiny_request without its last `rows` video rows."""
    request = tiny_request(config=FOUR_HEADS)
    changes = {
        name: getattr(request, name)[: len(getattr(request, name)) - rows]
        for name in ("positions", "tags", "video_index", "video_rows", "timestep_index")
    }
    return Packed(**{**vars(request), **changes})


@torch.no_grad()
def _velocities(ranks: Ranks, dtype: torch.dtype, dropped: int) -> tuple[torch.Tensor, ...]:
    return shortened(dropped).run(cut(ranks, dtype))


@pytest.mark.parametrize("dropped", [0, 1, 2, 3, 21])
def test_bit_equal_in_float64(ranks: Pool, dropped: int) -> None:
    with torch.no_grad():
        expected = shortened(dropped).run(whole(torch.float64))
    for velocities in ranks.run(_velocities, torch.float64, dropped):
        assert all(map(torch.equal, velocities, expected))


def test_close_in_float32(ranks: Pool) -> None:
    with torch.no_grad():
        expected = shortened(1).run(whole(torch.float32))
    for velocities in ranks.run(_velocities, torch.float32, 1):
        for found, wanted in zip(velocities, expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def _poisoned(ranks: Ranks) -> bool:
    """Are velocities the same when the rows that fill up the last slice are NaN?"""
    denoiser, request = cut(ranks, torch.float32), shortened(1)
    before = request.run(denoiser)
    zeros = torch.Tensor.new_zeros
    torch.Tensor.new_zeros = lambda self, *size, **how: torch.full_like(zeros(self, *size, **how), fill(self))
    try:
        after = request.run(denoiser)
    finally:
        torch.Tensor.new_zeros = zeros
    return all(map(torch.equal, before, after))


def fill(like: torch.Tensor) -> float:
    return float("nan") if like.is_floating_point() else 0


def test_filling_rows_never_reach_real_ones(ranks: Pool) -> None:
    assert all(ranks.run(_poisoned))


def _parameters(ranks: Ranks) -> int:
    blocks = cut(ranks, torch.float32).transformer.blocks
    return sum(p.numel() for p in blocks.parameters() if p.ndim == 2)


def test_each_rank_holds_its_share(ranks: Pool) -> None:
    blocks = whole(torch.float32).transformer.blocks
    total = sum(p.numel() for p in blocks.parameters() if p.ndim == 2)
    assert ranks.run(_parameters) == [total // ranks.shape.tp] * ranks.shape.size


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(RequestError, match="56 attention heads can be divided by 1, 2, 4, 7, 8"):
        check_heads(56, 3)
    with pytest.raises(RequestError, match="4 attention heads cannot be divided by it"):
        shard_denoiser(ProcessGroup(range(3), 0))(whole(torch.float32))
