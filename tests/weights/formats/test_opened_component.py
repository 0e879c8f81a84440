"""The door to a checkpoint: what does not fit its config is refused in one sentence, before a tensor is read."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from h3serve import Generator
from h3serve.cli.main import run
from h3serve.core.errors import CheckpointError
from h3serve.core.settings import EngineSettings
from h3serve.pipeline.replica import shape_of
from h3serve.runtime.machine import Machine
from h3serve.runtime.offload import policy as sizes
from h3serve.weights.files.checkpoint_folder import open_folder
from h3serve.weights.files.tensor_index import weight_files
from h3serve.weights.files.tensor_reader import TensorReader
from h3serve.weights.formats import inspection, load
from h3serve.weights.formats.components import RECIPES
from h3serve.weights.formats.inspection import inspect_model
from h3serve.weights.formats.opened_component import open_checkpoint, open_component
from tests.paths import ROOT
from tests.weights.faults import rewrite

Tensors = dict[str, torch.Tensor]

# A tensor of each network, and how deep it is: the file and the key of its config.
TENSOR = {
    "transformer": "blocks.1.mlp.fc2.weight",
    "text_encoder": "model.language_model.layers.3.mlp.up_proj.weight",
    "video_vae": "decoder.transformer_blocks.1.ff.w2.weight",
    "audio_vae": "decoder.conv_pre.bias",
}
DEPTH: dict[str, tuple[str, Callable[[dict[str, Any], int], Any]]] = {
    "transformer": ("config.json", lambda c, n: c.update(num_layers=c["num_layers"] + n)),
    "text_encoder": (
        "config.json",
        lambda c, n: c["text_config"].update(num_hidden_layers=c["text_config"]["num_hidden_layers"] + n),
    ),
    "video_vae": (
        "source/config.json",
        lambda c, n: c["vit_decoder_kwargs"].update(num_layers=c["vit_decoder_kwargs"]["num_layers"] + n),
    ),
    "audio_vae": ("metadata.json", lambda c, n: _more_blocks(c["metadata"]["kwargs"], n)),
}


def _more_blocks(sizes: dict[str, Any], number: int) -> None:
    """The audio decoder has a list of blocks for every kernel size."""
    kernels = [3, 7, 11, 13][: 3 + number]
    sizes |= {"resblock_kernel_sizes": kernels, "resblock_dilation_sizes": [[1, 3, 5]] * len(kernels)}


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a component, and the sentence about it."""

    said: str
    tensors: Callable[[str, Tensors], object] | None = None
    layers: int = 0  # the config's count is off by so many


def _beside(suffix: str) -> Callable[[str, Tensors], object]:
    return lambda name, held: held.update({f"{name.rpartition('.')[0]}.{suffix}": torch.ones(1)})


def _cast(dtype: torch.dtype) -> Callable[[str, Tensors], object]:
    return lambda name, held: held.update({name: held[name].to(dtype)})


SCALES = (
    "weight_scale_inv",
    "weight_scale_2",
    "scale_weight",
    "scale_input",
    "input_scale",
    "comfy_quant",
    "SCB",
    "weight.absmax",
    "qweight",
    "scales",
)
FAULTS = {
    "missing": Fault("1 tensors are missing: {name}", lambda name, held: held.pop(name)),
    "extra": Fault(
        "1 tensors belong to no part of the model that the config describes: more.weight",
        lambda _, held: held.update({"more.weight": torch.ones(1)}),
    ),
    "misshapen": Fault("{name} has shape", lambda name, held: held.update({name: held[name][:-1].clone()})),
    "integers": Fault("1 tensors are stored as int8: weights have to be", _cast(torch.int8)),
    "8-bit floats": Fault("1 tensors are stored as float8_e4m3fn: weights have to be", _cast(torch.float8_e4m3fn)),
    "lora_A": Fault("1 tensors belong to an adapter; merge it", _beside("lora_A.weight")),
    "lora_up": Fault("1 tensors belong to an adapter; merge it", _beside("lora_up.weight")),
    "fewer layers": Fault("belong to no part of the model that the config describes", layers=-1),
    "more layers": Fault("tensors are missing|counts layers that are not there", layers=1),
    "weight_scale": Fault("1 tensors belong to quantized weights, in a format", _beside("weight_scale")),
}


def plant(folder: Path, component: str, fault: Fault) -> str:
    """Breaks one component of an original partition; returns the sentence to be heard, as a pattern."""
    name, home = TENSOR[component], folder / component
    if fault.layers:
        file, change = DEPTH[component]
        config = json.loads((home / file).read_text())
        change(config, fault.layers)
        _write_json(home / file, config)
    if fault.tensors is not None:
        change_tensors = fault.tensors
        rewrite(home / "source" if component == "video_vae" else home, lambda held: change_tensors(name, held))
    return fault.said.replace("{name}", name)


def _write_json(file: Path, value: object) -> None:
    file.unlink()  # files of the two partitions may be one
    file.write_text(json.dumps(value))


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, reading a tensor's bytes is a failure."""

    def read(*_: object) -> int:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(TensorReader, "read", read)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("component", list(RECIPES))
def test_every_fault_of_every_component(copy: Path, component: str, fault: str, unread: None) -> None:
    said = plant(copy, component, FAULTS[fault])
    model = open_folder(copy)
    with pytest.raises(CheckpointError, match=said):
        open_component(model, component, "fl2va")


@pytest.mark.parametrize("suffix", SCALES)
def test_every_way_to_name_a_scale(copy: Path, suffix: str, unread: None) -> None:
    plant(copy, "audio_vae", Fault("", _beside(suffix)))
    with pytest.raises(CheckpointError, match="1 tensors belong to quantized weights, in a format"):
        open_component(open_folder(copy), "audio_vae", "fl2va")


@pytest.mark.parametrize("residency", ["resident", "offload", "stream", "files"])
@pytest.mark.parametrize("fault", ["missing", "weight_scale"])
@pytest.mark.parametrize("quantize", ["none", "fp8"])
def test_every_residency_and_precision_has_the_same_door(
    copy: Path, residency: str, fault: str, quantize: str, unread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = plant(copy, "transformer", FAULTS[fault])
    if residency == "files":
        monkeypatch.setattr(sizes, "measure", lambda _: Machine(2**40, 2**40, 2**20, 2**20))
    how = "offload" if residency == "files" else residency
    with pytest.raises(CheckpointError, match=said):
        Generator.from_pretrained(copy, device="cpu", residency=how, quantize=quantize)


@pytest.mark.parametrize("component", ["transformer", "text_encoder"])
@pytest.mark.parametrize("fault", ["missing", "weight_scale"])
def test_ranks_are_not_started_for_it(copy: Path, component: str, fault: str, unread: None) -> None:
    said = plant(copy, component, FAULTS[fault])
    with pytest.raises(CheckpointError, match=said):
        shape_of(EngineSettings(str(copy), device="cpu", gpus=2))


@pytest.mark.parametrize("fault", ["missing", "extra", "weight_scale", "lora_A", "fewer layers"])
def test_every_command_says_the_same_sentence(
    copy: Path, tmp_path: Path, fault: str, unread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(copy, "audio_vae", FAULTS[fault])
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(open_folder(copy), "fl2va")
    request = ["--prompt", "rain", "--short-edge", "64", "--duration", "4"]
    for command in (
        ["inspect", str(copy)],
        ["plan", "--model", str(copy), *request],
        ["generate", "--model", str(copy), "--device", "cpu", "--out", str(tmp_path / "out.mp4"), *request],
    ):
        assert run(command) != 0
        assert str(caught.value) in " ".join(capsys.readouterr().err.split()), command


def test_what_was_opened_is_not_opened_again(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading takes what the door gave: a config that changes meanwhile is not seen."""
    opened = open_component(open_folder(copy), "transformer", "fl2va")
    (copy / "transformer" / "config.json").unlink()
    assert load.load_component(opened, dtype=torch.float32).config == opened.config
    assert inspection.inspect_component(opened).tensors == len(opened.index.tensors)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("tokenizer/tokenizer_config.json", "tokenizer_config.json is missing"),
        ("processor/preprocessor_config.json", "preprocessor_config.json"),
        ("h3serve.json", "does not parse as JSON"),
    ],
)
def test_what_lies_beside_the_networks_is_looked_at_first_too(
    copy: Path, file: str, said: str, unread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / file).unlink()
    if file == "h3serve.json":
        (copy / file).write_text("{")
    with pytest.raises(CheckpointError, match=said) as caught:
        Generator.from_pretrained(copy, device="cpu")
    assert run(["inspect", str(copy)]) != 0
    assert str(caught.value) in " ".join(capsys.readouterr().err.split())


DOORS = ("read_index", "key_map", "read_config")


def test_nobody_else_opens_a_config_or_makes_a_key_map() -> None:
    """Callers of a recipe's functions and of `read_index`, by the syntax trees; others only write, or take names."""
    package, found = ROOT / "h3serve", []
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
            if name in DOORS:
                found.append((name, str(file.relative_to(package))))
    assert {where for _, where in found} == {
        "weights/formats/opened_component.py",
        "weights/adapters/adapter_layers.py",
        "weights/demo/demo_random.py",
        "weights/demo/demo_trained.py",
    }
    assert {where for name, where in found if name == "read_index"} == {"weights/formats/opened_component.py"}


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_missing_and_a_cut_file_are_named(copy: Path, name: str, unread: None) -> None:
    model = open_folder(copy)
    file = weight_files(open_component(model, name, "fl2va").index.folder)[-1]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{file.name} is cut off"):
        open_checkpoint(model, "fl2va")
    file.unlink()
    with pytest.raises(CheckpointError, match="missing|no weight files"):
        open_checkpoint(model, "fl2va")


@pytest.mark.parametrize("component", list(RECIPES))
def test_a_config_that_names_a_format(copy: Path, component: str) -> None:
    file = copy / component / "config.json"
    _write_json(file, json.loads(file.read_text()) | {"quantization_config": {"quant_method": "fp8"}})
    with pytest.raises(CheckpointError, match="names a quantized format"):
        open_component(open_folder(copy), component, "fl2va")


def test_a_text_encoder_without_its_unused_layers(copy: Path) -> None:
    """Layers that no one runs may be left out whole."""
    rewrite(copy / "text_encoder", lambda held: [held.pop(n) for n in list(held) if ".layers.50." in n])
    assert inspect_model(open_folder(copy)).verdict == "ok"


@pytest.mark.parametrize(
    ("component", "file", "change", "said"),
    [
        ("video_vae", "config.json", {"vae_tile_size": 250, "vae_tile_overlap_min": 60}, "multiple of 16 from 32 on"),
        ("video_vae", "config.json", {"vae_tile_size": 0, "vae_tile_overlap_min": 0}, "tile_size is 0"),
        ("video_vae", "config.json", {"vae_tile_overlap_min": 256}, "multiple of 16 from 0 to 240"),
        ("transformer", "config.json", {"latents_dim": 16}, "in_channels is 16, MiniMax-H3 has 24"),
        ("transformer", "config.json", {"patch_size": [1, 1, 1]}, "patch_size is"),
        ("transformer", "config.json", {"text_dim": 32}, "the transformer takes 32|the config needs"),
        ("video_vae", "config.json", {"vae_clip_length": 13}, "clip_length is 13, MiniMax-H3 has 17"),
        ("video_vae", "config.json", {"vae_token_drop": 2}, "token_drop is 2, MiniMax-H3 has 3"),
        ("video_vae", "source/config.json", {"space_down": [2, 2, 2, 1, 1, 1]}, "space_ratio is 8, MiniMax-H3 has 16"),
        ("video_vae", "source/config.json", {"ch": "four"}, "config"),
        ("video_vae", "source/config.json", {"norm_num_groups": 3}, "no network has the config's sizes"),
        ("audio_vae", "config.json", {"sample_rate": 48000}, "sample_rate is 48000, and elsewhere 32000"),
        ("audio_vae", "config.json", {"latents_std": [0.0] * 32}, "latents_std above 0"),
        ("audio_vae", "config.json", {"latents_mean": [float("nan")] * 32}, "latents_mean is finite"),
        ("audio_vae", "metadata.json", {"metadata": {"kwargs": {"vae_latent_channels": 16}}}, "config"),
        ("video_vae", "config.json", {"latent_channels": 16}, "latent_channels is 16"),
        ("video_vae", "source/config.json", {"vae_ratio": 8}, "vae_ratio is 8, other sizes make it 16"),
        ("text_encoder", "config.json", {"text_config": {}}, "config"),
        ("text_encoder", "config.json", {"vision_config": 3}, "config"),
    ],
)
def test_sizes_that_no_plan_knows(
    copy: Path, component: str, file: str, change: dict[str, Any], said: str, unread: None
) -> None:
    path = copy / component / file
    _write_json(path, json.loads(path.read_text()) | change)
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(open_folder(copy), "fl2va")
