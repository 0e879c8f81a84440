import pytest
import torch

from h3serve.models.kernels.attention import sdpa
from h3serve.models.kernels.elementwise import PLAIN
from h3serve.models.kernels.float8_linear import use_float8
from h3serve.models.quality import use_quality, use_vae_quality
from h3serve.models.transformer.denoiser import FLOAT8_LINEARS
from h3serve.models.video_vae import decoder_ops, video_encoder
from tests.models.tiny_transformer import tiny_denoiser, tiny_request
from tests.models.tiny_video_vae import tiny

CPU = torch.device("cpu")


def test_tiers_on_a_cpu() -> None:
    """Without kernels exact and lossless are one and the same; fast costs what 8 bits cost, and no more."""
    denoiser, request = tiny_denoiser(), tiny_request()
    results = []
    for tier in ("exact", "lossless", "fast"):
        if tier == "fast":
            use_float8(denoiser, FLOAT8_LINEARS, torch.float32)
        use_quality(denoiser.transformer, tier, CPU)
        results.append(request.run(denoiser)[0])
    exact, lossless, fast = results
    assert torch.equal(exact, lossless)
    assert 0.005 < (fast - exact).norm() / exact.norm() < 0.1


def test_exact_puts_the_reference_back() -> None:
    transformer = tiny_denoiser().transformer
    transformer.attention, transformer.ops = lambda q, k, v: v, None  # type: ignore[assignment]
    use_quality(transformer, "exact", torch.device("cuda"))
    assert (transformer.attention, transformer.ops) == (sdpa, PLAIN)


def test_fast_needs_8_bits() -> None:
    with pytest.raises(ValueError, match="8 bits"):
        use_quality(tiny_denoiser().transformer, "fast", CPU)


def test_a_tier_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="slow"):
        use_quality(tiny_denoiser().transformer, "slow", CPU)


def test_vae_on_a_cpu_has_no_kernels() -> None:
    vae = tiny()
    vae.decoder.ops, vae.encoder.trunk = None, None  # type: ignore[assignment]
    use_vae_quality(vae, "lossless", CPU)
    assert (vae.decoder.ops, vae.encoder.trunk) == (decoder_ops.PLAIN, video_encoder.trunk)
