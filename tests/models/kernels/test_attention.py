import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from h3serve.models.kernels.attention import available, fastest, mean_key, sdpa
from h3serve.models.kernels.optional_packages import flash4_loads


def test_sdpa_is_full_attention_per_head() -> None:
    q, k, v = torch.randn(3, 9, 2, 128, generator=torch.Generator().manual_seed(0))
    out = sdpa(q, k, v)
    for head in range(2):
        weights = (q[:, head] @ k[:, head].T / 128**0.5).softmax(-1)
        assert torch.allclose(out[:, head], weights @ v[:, head], atol=1e-5)


def test_sdpa_takes_views_of_packed_qkv() -> None:
    packed = torch.randn(9, 3, 2, 128, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(sdpa(*packed.unbind(1)), sdpa(*(p.contiguous() for p in packed.unbind(1))), atol=1e-6)


@pytest.mark.parametrize(
    ("device", "capability", "dtype", "installed", "expected"),
    [
        ("cpu", None, torch.bfloat16, True, "sdpa"),
        ("cuda", (9, 0), torch.bfloat16, True, "FlashAttention-4"),
        ("cuda", (10, 0), torch.bfloat16, True, "FlashAttention-4"),
        ("cuda", (9, 0), torch.bfloat16, False, "padded cuDNN"),
        ("cuda", (9, 0), torch.float32, True, "sdpa"),
        ("cuda", (8, 9), torch.bfloat16, True, "sdpa"),
        ("cuda", (12, 0), torch.bfloat16, True, "sdpa"),
    ],
)
def test_fastest(
    device: str,
    capability: tuple[int, int] | None,
    dtype: torch.dtype,
    installed: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("h3serve.models.kernels.attention.has_triton", lambda: True)
    monkeypatch.setattr("h3serve.models.kernels.attention.flash4_loads", lambda: installed)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    kernels = available(torch.device(device), dtype)
    assert list(kernels)[-1] == expected
    assert fastest(torch.device(device), dtype) is kernels[expected]


def padded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and logsumexp [heads, S] with `count` more keys, whose values are zero."""
    mean = mean_key(k)
    k, v = torch.cat([k, mean.expand(count, -1, -1)]), torch.cat([v, torch.zeros_like(v[:count])])
    scores = torch.einsum("shd,thd->hst", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("hst,thd->shd", scores.softmax(-1), v).contiguous(), scores.logsumexp(-1)


@pytest.mark.parametrize("common", [0.0, 5.0])
@pytest.mark.parametrize("count", [1, 100])
def test_what_padding_adds_is_taken_out(common: float, count: int) -> None:
    """Also for queries that all real keys point away from."""
    pytest.importorskip("triton")
    from h3serve.models.kernels.attention_padding import without_padding

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(count)
    packed = torch.randn(300, 3, 3, 64, generator=generator).to(device)
    packed[:, 1] += common
    packed[:150, 0] -= common
    q, k, v = packed.unbind(1)
    out, logsumexp = padded(q, k, v, count)
    assert common or (out - sdpa(q, k, v)).norm() > 1e-3 * out.norm()
    weight = count * torch.exp(torch.einsum("shd,hd->hs", q, mean_key(k)) / 8 - logsumexp)
    assert weight.max() < count / (300 + count) * 1.01  # Jensen
    without_padding(out, logsumexp, q=q, key=mean_key(k), count=count)
    # Scores of some hundreds have an absolute error of their own in float32.
    assert torch.allclose(out, sdpa(q, k, v), atol=2e-3 if common else 2e-5)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Whether the extra loads is looked up once a process: here anew, and again after the test."""
    before = set(sys.modules)
    flash4_loads.cache_clear()
    yield
    flash4_loads.cache_clear()
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("interface", "products", "loads"),
    [("", "", True), ("import missing_part_of_it", "", False), ("", "raise RuntimeError('no such GPU')", False)],
)
def test_an_extra_that_is_installed_in_part_is_left_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    interface: str,
    products: str,
    loads: bool,
) -> None:
    for name, text in (("flash_attn/cute/interface.py", interface), ("quack/gemm_interface.py", products)):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
        (file.parent / "__init__.py").touch()
    (tmp_path / "flash_attn/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert [flash4_loads() for _ in range(2)] == [loads] * 2
    assert len(caplog.records) == (not loads)


@pytest.mark.usefixtures("fresh")
def test_without_the_extra_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert not flash4_loads()
    assert not caplog.records
