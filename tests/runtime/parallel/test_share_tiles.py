"""A VAE over four ranks gives one rank's moments and frames, to the bit where tiles go one by one."""

from collections.abc import Iterator

import pytest
import torch

from h3serve.models.video_vae.video_vae import VideoVAE
from h3serve.runtime.parallel.process_group import Ranks
from h3serve.runtime.parallel.sharding import share_tiles
from tests.models.tiny_video_vae import tiny
from tests.rank_pool import Pool, pool

HEIGHT, WIDTH = 272, 480  # 2 x 3 tiles: not a multiple of four


@pytest.fixture(scope="module")
def four() -> Iterator[Pool]:
    with pool(ulysses=2, tp=2) as ranks:
        yield ranks


def both_ways(vae: VideoVAE) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(1, 3, 1, HEIGHT, WIDTH, generator=generator)
    latents = torch.randn(1, 24, 7, HEIGHT // 16, WIDTH // 16, generator=generator)
    moments = vae.encode(pixels)
    return {"mean": moments.mean, "logvar": moments.logvar, "frames": vae.decode_all(latents)}


def _shared(ranks: Ranks) -> tuple[dict[str, torch.Tensor], int]:
    vae, computed = tiny(), []
    vae.decoder.register_forward_hook(lambda *_: computed.append(1))
    share_tiles(vae, ranks.world)
    return both_ways(vae), len(computed)


def test_equal_to_one_rank(four: Pool) -> None:
    expected = both_ways(tiny())
    for found, computed in four.run(_shared, timeout=60):
        assert computed == 2  # of six tiles
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
