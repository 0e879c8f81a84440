import pytest
import torch

from h3serve.models.attention import sdpa
from h3serve.models.ops import PLAIN
from h3serve.models.tiers import TIERS, use_tier
from tests.models.tiny_transformer import tiny_denoiser, tiny_request


def test_tiers_agree_on_a_cpu() -> None:
    denoiser, request = tiny_denoiser(), tiny_request()
    results = []
    for tier in TIERS:
        use_tier(denoiser.transformer, tier, torch.device("cpu"))
        results.append(request.run(denoiser)[0])
    assert len(results) == 2
    assert torch.equal(*results)


def test_exact_puts_the_reference_back() -> None:
    transformer = tiny_denoiser().transformer
    transformer.attention, transformer.ops = lambda q, k, v: v, None  # type: ignore[assignment]
    use_tier(transformer, "exact", torch.device("cuda"))
    assert (transformer.attention, transformer.ops) == (sdpa, PLAIN)


def test_a_tier_that_is_not_built_is_refused() -> None:
    with pytest.raises(ValueError, match="fast"):
        use_tier(tiny_denoiser().transformer, "fast", torch.device("cpu"))
