"""Adapters in whole generations: beside a checkpoint with them merged, wherever weights live; then gone again."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from h3serve import Generator
from h3serve.core.errors import H3Error, RequestError
from h3serve.pipeline import generator as generator_file
from h3serve.pipeline.generation_result import GenerationResult
from h3serve.runtime.adapters import adapter_shelf
from h3serve.runtime.offload import policy
from h3serve.weights.adapters.merge_adapters import merge_adapters
from h3serve.weights.adapters.open_adapter import Adapter, open_adapter
from h3serve.weights.demo.demo_random import write_demo_checkpoint
from h3serve.weights.files.checkpoint_folder import open_folder
from h3serve.weights.formats.opened_component import open_component
from tests.pipeline.test_placements import LITTLE

TARGET = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}
REQUEST: dict[str, Any] = {"task": "t2va", "prompt": "rain.", "target": TARGET, "num_inference_steps": 2, "seed": 3}
CPU: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
PLACES = ["resident", "offload", "stream", "stream from files"]
LATENTS = ("final_video_latents", "final_audio_latents")


@pytest.fixture(autouse=True)
def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded sound is most of a small generation's time, and latents say all."""
    monkeypatch.setattr(generator_file, "decode_audio", lambda vae, latents: np.zeros((2, 0), np.float32))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose transformer is stored in float32, so that merging rounds nothing."""
    folder = tmp_path_factory.mktemp("base") / "checkpoint"
    write_demo_checkpoint(folder)
    for file in folder.glob("*/transformer/*.safetensors"):
        save_file({name: value.float() for name, value in load_file(file).items()}, file)
    return folder


@pytest.fixture(scope="module")
def base(model: Path) -> Generator:
    return Generator.from_pretrained(model, **CPU)


@pytest.fixture(scope="module")
def folder(base: Generator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Low ranks on all layers of the blocks; on modulation; whole tensors and offsets; and DoRA."""
    folder, layers = tmp_path_factory.mktemp("adapters"), dict(linears(base.engine.denoisers["fl2va"]))
    blocks = {name: layer for name, layer in layers.items() if ".attn." in name or ".mlp." in name}
    save_file(low_rank(blocks, 3, size=0.08), folder / "blocks.safetensors")
    modulation = {name: layer for name, layer in layers.items() if "adaln_proj" in name or "time_embedder" in name}
    save_file(low_rank(modulation, 2, size=0.1, seed=1), folder / "modulation.safetensors")
    heads = {name: layer for name, layer in layers.items() if name.startswith(("final_layer.video", "condition"))}
    whole = {f"{name}.diff": torch.randn(layer.weight.shape) * 0.05 for name, layer in heads.items()}
    whole |= {f"{name}.diff_b": torch.randn(layer.bias.shape) * 0.05 for name, layer in heads.items()}
    save_file(whole, folder / "whole.safetensors")
    fc2 = {name: layer for name, layer in blocks.items() if name.endswith("fc2")}
    dora = low_rank(fc2, 2, size=0.1, seed=2)
    dora |= {f"{name}.dora_scale": torch.rand(layer.out_features, 1) + 0.5 for name, layer in fc2.items()}
    save_file(dora, folder / "dora.safetensors")
    return folder


def linears(module: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Every linear layer by the name that the release has for it."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            yield name.removeprefix("transformer.").removeprefix("modulation."), layer


def low_rank(layers: dict[str, nn.Linear], rank: int, *, size: float, seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    tensors = {}
    for name, layer in layers.items():
        tensors[f"{name}.lora_A.weight"] = torch.randn(rank, layer.in_features) * size
        tensors[f"{name}.lora_B.weight"] = torch.randn(layer.out_features, rank) * size
    return tensors


def adapted(folder: Path, *strong: tuple[str, float]) -> dict[str, Any]:
    return {**REQUEST, "adapters": [{"name": str(folder / f"{n}.safetensors"), "strength": s} for n, s in strong]}


def made(generator: Generator, request: dict[str, Any]) -> GenerationResult:
    return generator.generate(request, keep=("latents",))


def same(a: GenerationResult, b: GenerationResult) -> bool:
    return all(np.array_equal(a.kept[name], b.kept[name]) for name in LATENTS)


def near(a: GenerationResult, b: GenerationResult, atol: float = 2e-4) -> None:
    for name in LATENTS:
        np.testing.assert_allclose(a.kept[name], b.kept[name], rtol=0, atol=atol)


def differs(a: GenerationResult, b: GenerationResult) -> bool:
    return bool(np.abs(a.kept["final_video_latents"] - b.kept["final_video_latents"]).max() > 1e-2)


SETS: list[list[tuple[str, float]]] = [
    [("blocks", 1.0)],
    [("modulation", 1.0)],
    [("whole", -1.0)],
    [("dora", 1.0)],
    [("dora", 0.5), ("blocks", 2.0), ("modulation", -1.0), ("whole", 1.0)],
]


@pytest.mark.parametrize("chosen", SETS, ids=str)
def test_equals_the_merged_checkpoint(
    chosen: list[tuple[str, float]], model: Path, folder: Path, base: Generator, tmp_path: Path
) -> None:
    """And without them the bits of the base are back."""
    opened = open_component(open_folder(model), "transformer", "fl2va")
    merging = [(open_adapter(folder / f"{name}.safetensors", opened.config), strength) for name, strength in chosen]
    merge_adapters(open_folder(model), "fl2va", merging, tmp_path / "merged")
    expected = made(Generator.from_pretrained(tmp_path / "merged", **CPU), REQUEST)
    before = made(base, REQUEST)
    near(made(base, adapted(folder, *chosen)), expected)
    near(made(base, adapted(folder, *chosen[::-1])), expected)
    assert differs(before, expected)
    assert same(made(base, adapted(folder, *((name, 0.0) for name, _ in chosen))), before)
    assert same(made(base, REQUEST), before)


@pytest.mark.parametrize("place", PLACES)
def test_the_same_bits_wherever_weights_live(
    place: str, model: Path, folder: Path, base: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    residency, _, files = place.partition(" ")
    if files:
        monkeypatch.setattr(policy, "measure", lambda device: LITTLE)
    generator, request = Generator.from_pretrained(model, residency=residency, **CPU), adapted(folder, *SETS[-1])
    assert same(made(generator, request), made(base, request))
    assert same(made(generator, REQUEST), made(base, REQUEST))


def test_on_layers_of_8_bits(model: Path, folder: Path, base: Generator) -> None:
    """As far from the 16-bit result as the base is from its own, and the same bits when it is gone."""
    generator = Generator.from_pretrained(model, quantize="fp8", **CPU)
    before = made(generator, REQUEST)
    own_error = np.abs(before.kept["final_video_latents"] - made(base, REQUEST).kept["final_video_latents"]).max()
    request = adapted(folder, ("blocks", 1.0), ("whole", 1.0))
    near(made(generator, request), made(base, request), atol=3 * own_error)
    assert same(made(generator, REQUEST), before)


def test_a_video_names_its_adapters_by_file_and_hash(folder: Path, base: Generator) -> None:
    file = folder / "blocks.safetensors"
    record = base.generate({**REQUEST, "adapters": [{"name": str(file), "strength": 0.5}]}).record
    assert record is not None and str(folder) not in record
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    expected = [{"strength": 0.5, "sha256": sha256, "name": "blocks.safetensors"}]
    assert json.loads(record)["request"]["adapters"] == expected
    plain = base.generate(REQUEST).record
    assert plain is not None and "adapters" not in json.loads(plain)["request"]


def test_what_the_result_tells(folder: Path, base: Generator) -> None:
    told = base.generate(adapted(folder, ("blocks", 1.5))).stats["adapters"]
    path = folder / "blocks.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert told == [
        {
            "name": str(path),
            "sha256": digest,
            "strength": 1.5,
            "dialect": "ComfyUI native",
            "layers": sum("lora_A" in name for name in load_file(path)),
            "of_layers": told[0]["of_layers"],
            "ranks": [3],
            "alphas": [3.0],
            "trained_on": None,
            "warnings": [],
        }
    ]
    assert "adapters" not in base.generate(REQUEST).stats


def bad(folder: Path, tmp_path: Path) -> dict[str, tuple[Sequence[dict[str, Any]], str, str]]:
    """Adapters of a request that cannot be had -> the field that is wrong, and words of the sentence."""
    good = {"name": str(folder / "blocks.safetensors")}
    (tmp_path / "text.safetensors").write_text("not a header")
    save_file({"blocks.0.attn.qkv_proj.lora_A.weight": torch.zeros(2, 64)}, tmp_path / "half.safetensors")
    save_file({"other.layer.lora_A.weight": torch.zeros(2, 64)}, tmp_path / "other.safetensors")
    save_file({"condition_proj.reshape_weight": torch.zeros(1)}, tmp_path / "role.safetensors")
    files = {name: {"name": str(tmp_path / f"{name}.safetensors")} for name in ("text", "half", "other", "gone")}
    return {
        "no file": ([good, files["gone"]], "adapters[1].name", "No such file"),
        "a folder": ([{"name": str(tmp_path)}], "adapters[0].name", "irectory"),
        "no safetensors file": ([files["text"]], "adapters[0].name", "text.safetensors"),
        "half a layer": ([good, files["half"]], "adapters[1].name", "half.safetensors"),
        "another model's": ([files["other"]], "adapters[0].name", "other.layer"),
        "other bytes": ([{**good, "sha256": "0" * 64}], "adapters[0].sha256", "has the SHA-256"),
        "strength is no number": ([{**good, "strength": float("nan")}], "adapters[0].strength", "a number from -10"),
        "strength out of range": ([{**good, "strength": 11}], "adapters[0].strength", "a number from -10"),
        "twice": ([good, good], "adapters[1].name", "once"),
        "unknown member": ([{**good, "weight": 1.0}], "adapters[0].weight", "known here are name, sha256, strength"),
        "too many": ([{"name": f"{n}"} for n in range(9)], "adapters", "at most 8"),
    }


def test_refused_in_one_sentence(folder: Path, base: Generator, tmp_path: Path) -> None:
    """Nothing has changed: the next request without adapters has the base's bits."""
    before = made(base, REQUEST)
    for case, (adapters, field, words) in bad(folder, tmp_path).items():
        with pytest.raises(RequestError) as caught:
            base.generate({**REQUEST, "adapters": adapters})
        assert caught.value.field == field, case
        assert words in str(caught.value) and "\n" not in str(caught.value), case
    assert same(made(base, REQUEST), before)


def test_an_adapter_of_the_other_partition(folder: Path, base: Generator, tmp_path: Path) -> None:
    tensors = {f"transformer_ref.{name}": value for name, value in load_file(folder / "blocks.safetensors").items()}
    save_file(tensors, tmp_path / "style.safetensors")
    with pytest.raises(RequestError, match="is an adapter for ref2va"):
        base.generate({**REQUEST, "adapters": [{"name": str(tmp_path / "style.safetensors")}]})


def test_names_in_a_folder(model: Path, folder: Path, base: Generator) -> None:
    """With a folder there are its names and no paths; both spellings of the field mean the same."""
    generator = Generator.from_pretrained(model, adapter_folder=str(folder), **CPU)
    expected = made(base, adapted(folder, ("blocks", 1.0)))
    assert same(made(generator, {**REQUEST, "adapters": [{"name": "blocks"}]}), expected)
    assert same(made(generator, {**REQUEST, "loras": [{"name": "blocks"}]}), expected)
    for name in (str(folder / "blocks.safetensors"), "../adapters/blocks", "blocks.safetensors"):
        with pytest.raises(RequestError, match="one of blocks, dora, modulation, whole"):
            generator.generate({**REQUEST, "adapters": [{"name": name}]})
    with pytest.raises(RequestError, match="adapters"):
        generator.generate({**REQUEST, "loras": [], "adapters": []})
    with pytest.raises(RequestError, match="adapter_folder"):
        Generator.from_pretrained(model, adapter_folder=str(folder / "none"), **CPU)


def test_a_file_that_is_written_again(folder: Path, base: Generator, tmp_path: Path) -> None:
    """The next request has the new bytes, unless it names the old ones."""
    path = tmp_path / "a.safetensors"
    path.write_bytes((folder / "blocks.safetensors").read_bytes())
    request = {**REQUEST, "adapters": [{"name": str(path)}]}
    first = made(base, request)
    path.write_bytes((folder / "whole.safetensors").read_bytes())
    second = made(base, request)
    assert same(second, made(base, adapted(folder, ("whole", 1.0)))) and not same(first, second)
    pinned = {**REQUEST, "adapters": [{"name": str(path), "sha256": first.stats["adapters"][0]["sha256"]}]}
    with pytest.raises(RequestError, match="has the SHA-256"):
        base.generate(pinned)


def test_least_recently_used_adapters_leave_memory(
    folder: Path, base: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = base.engine.adapters["fl2va"]._shelf
    read = []
    monkeypatch.setattr(shelf, "_held", type(shelf._held)())

    def noted(path: Path, *sizes: Any, **how: Any) -> Adapter:
        read.append(path.stem)
        return open_adapter(path, *sizes, **how)

    monkeypatch.setattr(adapter_shelf, "open_adapter", noted)
    for name in ("blocks", "whole", "blocks", "whole"):
        base.generate(adapted(folder, (name, 1.0)))
    assert read == ["blocks", "whole"]
    monkeypatch.setattr(shelf, "_limit", 1)
    for name in ("dora", "blocks", "blocks", "dora"):
        base.generate(adapted(folder, (name, 1.0)))
    assert read == ["blocks", "whole", "dora", "blocks", "dora"]


def test_new_weights_take_adapters_off(model: Path, folder: Path, tmp_path: Path) -> None:
    """What was prepared for the old weights is prepared anew: DoRA's norms are of the base that is there."""
    write_demo_checkpoint(tmp_path / "new", seed=7)
    generator, request = Generator.from_pretrained(model, **CPU), adapted(folder, *SETS[-1])
    new = Generator.from_pretrained(tmp_path / "new", **CPU).engine
    others = {"denoisers": new.denoisers, "modulations": new.modulations, "adapters": new.adapters, "placements": {}}
    fresh = Generator(replace(generator.engine, **others))
    generator.generate(request)
    generator.update_weights(tmp_path / "new")
    assert same(made(generator, REQUEST), made(fresh, REQUEST))
    assert same(made(generator, request), made(fresh, request))


def test_tables_are_those_of_the_adapters(folder: Path, base: Generator) -> None:
    """Modulation is rebuilt when an adapter of it comes, at another strength, or goes, and at no other time."""

    def rebuilt() -> float:
        return base.engine.stats("t2va")["modulation"]["rebuild"]["hits"]

    base.generate(adapted(folder, ("modulation", 1.0)))
    before = rebuilt()
    base.generate(adapted(folder, ("modulation", 1.0)))
    base.generate(adapted(folder, ("modulation", 1.0), ("blocks", 1.0)))
    assert rebuilt() == before
    base.generate(adapted(folder, ("modulation", 0.5)))
    assert (changed := rebuilt()) > before
    base.generate(adapted(folder, ("blocks", 0.5)))
    assert rebuilt() > changed


def test_an_engine_without_files_has_none(folder: Path) -> None:
    from tests.pipeline.small_engine import small_engine

    with pytest.raises(H3Error, match="was not loaded from files"):
        Generator(small_engine()).generate(adapted(folder, ("blocks", 1.0)))
