"""Attention on 8-bit floats against full precision, and against the same roundings written out in torch.

On a CUDA device where there is one, in Triton's interpreter (tests/conftest.py) otherwise.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from h3serve.models.kernels.attention import sdpa
from h3serve.models.kernels.float8_rows import FLOAT8

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")
if DEVICE == "cuda" and torch.cuda.get_device_capability() < (8, 9):
    pytest.skip("needs 8-bit matrix units", allow_module_level=True)

from triton.runtime import interpreter  # noqa: E402

from h3serve.models.kernels.attention_float8 import attention8  # noqa: E402


@pytest.fixture(autouse=True)
def interpreter_that_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter cuts where hardware rounds to nearest, and asks numpy for what numpy no longer does."""
    convert, patch = interpreter._convert_float, interpreter._patch_lang_tensor

    def rounded(value: Any, was: Any, to: Any, mode: Any) -> Any:
        if str(was) == "fp32" and str(to) == "fp8e4nv":
            return torch.from_numpy(value.copy()).to(FLOAT8).view(torch.uint8).numpy()
        return convert(value, was, to, mode)

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_convert_float", rounded)
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


def distance(value: torch.Tensor, exact: torch.Tensor) -> float:
    return float((value.float() - exact.float()).norm() / exact.float().norm())


def draw(rows: int, heads: int, head_dim: int, *, common: float = 0.0, size: float = 1.0) -> torch.Tensor:
    """q, k, v packed, keys with something in common; float16, as `draw(...).unbind(1)` needs no copies."""
    generator = torch.Generator().manual_seed(rows)
    packed = torch.randn(rows, 3, heads, head_dim, generator=generator)
    packed[:, 1] += common * torch.randn(1, heads, head_dim, generator=generator)
    packed[:, 2] *= size
    return packed.to(DEVICE, torch.float32 if DEVICE == "cpu" else torch.bfloat16)


def rounded(part: torch.Tensor) -> torch.Tensor:
    return part.float().to(FLOAT8).float()


SHAPES = pytest.mark.parametrize(("rows", "heads", "head_dim"), [(300, 2, 128), (128, 3, 64), (77, 1, 32), (1, 1, 64)])


@SHAPES
@pytest.mark.parametrize("common", [0.0, 3.0])
def test_distance_from_full_precision(rows: int, heads: int, head_dim: int, common: float) -> None:
    q, k, v = draw(rows, heads, head_dim, common=common).unbind(1)
    exact, out = sdpa(q.float(), k.float(), v.float()), attention8(q, k, v)
    assert out.shape == exact.shape and out.dtype == q.dtype and torch.isfinite(out).all()
    assert distance(out, exact) < 0.07


@SHAPES
def test_it_is_what_its_roundings_make(rows: int, heads: int, head_dim: int) -> None:
    q, k, v = draw(rows, heads, head_dim).unbind(1)
    scale = v.float().square().mean((0, 2), keepdim=True).sqrt() / 4
    expected = sdpa(rounded(q), rounded(k.float() - k.float().mean(0)), rounded(v.float() / scale) * scale)
    assert distance(attention8(q, k, v), expected) < 0.04  # what is left: probabilities of four bits


@pytest.mark.parametrize("size", [1e-4, 1e4])
def test_the_size_of_values_is_the_heads_own(size: float) -> None:
    packed = draw(150, 2, 64)
    packed[:, 2, 1] *= size
    q, k, v = packed.unbind(1)
    exact, out = sdpa(q.float(), k.float(), v.float()), attention8(q, k, v)
    for head in range(2):
        assert distance(out[:, head], exact[:, head]) < 0.07


def test_what_lies_past_the_end_is_never_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own scratch memory and the output start as NaN, and so are the rows behind the sequence."""
    made = []

    def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def call(*args: object, **kwargs: object) -> torch.Tensor:
            made.append(make(*args, **kwargs))
            made[-1].view(torch.uint8).fill_(0xFF)  # NaN of e4m3, bfloat16 and float32
            return made[-1]

        return call

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))
    packed = torch.full((200, 3, 2, 64), torch.nan, device=DEVICE, dtype=draw(1, 1, 64).dtype)
    packed[:131] = draw(131, 2, 64)
    q, k, v = packed[:131].unbind(1)
    assert torch.isfinite(attention8(q, k, v)).all() and {part.dtype for part in made} == {FLOAT8, q.dtype}
    assert distance(attention8(q, k, v), sdpa(q.float(), k.float(), v.float())) < 0.07
