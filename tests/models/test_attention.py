import pytest
import torch

from h3serve.models.attention import fastest, flash4, sdpa

CPU = torch.device("cpu")


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
        ("cpu", None, torch.bfloat16, True, sdpa),
        ("cuda", (9, 0), torch.bfloat16, True, flash4),
        ("cuda", (10, 0), torch.bfloat16, True, flash4),
        ("cuda", (9, 0), torch.bfloat16, False, sdpa),
        ("cuda", (9, 0), torch.float32, True, sdpa),
        ("cuda", (8, 9), torch.bfloat16, True, sdpa),
        ("cuda", (12, 0), torch.bfloat16, True, sdpa),
    ],
)
def test_fastest(
    device: str,
    capability: tuple[int, int] | None,
    dtype: torch.dtype,
    installed: bool,
    expected: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("h3serve.models.attention._has_flash4", lambda: installed)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert fastest(torch.device(device), dtype) is expected
