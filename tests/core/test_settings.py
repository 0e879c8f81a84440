"""How tiers and quantization go together."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from h3serve.core.errors import RequestError
from h3serve.core.settings import EngineSettings, cache_folder, check_quality


@pytest.mark.parametrize(
    ("quality", "quantize", "float8"),
    [
        ("exact", "auto", False),
        ("exact", "none", False),
        ("lossless", "auto", False),
        ("lossless", "fp8", True),
        ("fast", "auto", True),
        ("fast", "fp8", True),
    ],
)
def test_what_runs_on_8_bits(quality: str, quantize: str, float8: bool) -> None:
    assert EngineSettings("m", quality=quality, quantize=quantize).float8 is float8  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("quality", "quantize", "why"),
    [("exact", "fp8", "as they are"), ("fast", "none", "layers of 8 bits"), ("lossless", "int4", "auto, none or fp8")],
)
def test_what_excludes_each_other(quality: str, quantize: str, why: str) -> None:
    with pytest.raises(RequestError, match=f"quantize: '{quantize}' .*{why}"):
        _ = EngineSettings("m", quality=quality, quantize=quantize).float8  # type: ignore[arg-type]


def test_a_request_gets_the_tier_it_names_or_none() -> None:
    check_quality(None, quality="lossless", quantize="fp8")
    check_quality("lossless", quality="lossless", quantize="auto")
    check_quality("fast", quality="fast", quantize="fp8")
    with pytest.raises(RequestError, match="loaded at lossless"):
        check_quality("exact", quality="lossless", quantize="auto")
    with pytest.raises(RequestError, match="quantized to 8 bits"):
        check_quality("lossless", quality="lossless", quantize="fp8")


def test_the_cache_s_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder(None) == Path("/home/somebody/.cache/h3serve")
    assert cache_folder("~/kept") == Path("/home/somebody/kept")
    assert cache_folder("/kept") == Path("/kept")


def test_a_home_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    assert cache_folder("/kept") == Path("/kept")
    with pytest.raises(RequestError, match="cache: .* a folder has to be named"):
        cache_folder(None)


def test_other_processes_are_told_in_json() -> None:
    """Ranks and workers get the settings on their command line; folders are paths where flags name them."""
    settings = EngineSettings("m", cache=Path("/kept"), encodings_cache=Path("/encoded"), gpus=2)
    told = json.loads(json.dumps(settings.to_json()))
    assert set(told) == {known.name for known in fields(EngineSettings)}
    assert (told["cache"], told["encodings_cache"], told["gpus"], told["revision"]) == ("/kept", "/encoded", 2, None)
