"""Weights that are quantized while they are read."""

from pathlib import Path

import pytest
import torch

from h3serve.core.errors import CheckpointError
from h3serve.models.kernels.float8_linear import Float8Linear
from h3serve.models.kernels.float8_rows import quantize_rows
from h3serve.weights.files.checkpoint_folder import open_folder
from h3serve.weights.formats.components import RECIPES
from h3serve.weights.formats.load import load_component
from h3serve.weights.formats.opened_component import open_component
from tests.weights.faults import rewrite

Tensors = dict[str, torch.Tensor]


@pytest.mark.parametrize("name", ["transformer", "text_encoder"])
def test_the_rows_of_the_plain_load(name: str, original: Path) -> None:
    plain = load_component(open_component(open_folder(original), name, "fl2va"))
    quantized = load_component(open_component(open_folder(original), name, "fl2va"), float8=True)
    layers = {path for path, module in quantized.named_modules() if isinstance(module, Float8Linear)}
    per_block = {"transformer": 4, "text_encoder": 7}[name]
    assert len(layers) % per_block == 0 and layers
    held = quantized.state_dict()
    for tensor, value in plain.state_dict().items():
        path = tensor.removesuffix(".weight")
        if path in layers:
            rows, layer = quantize_rows(value), quantized.get_submodule(path)
            assert torch.equal(held[tensor].float(), rows.values.float())
            assert torch.equal(layer.weight_scale, rows.scale)
        else:
            assert held[tensor].dtype == value.dtype and torch.equal(held[tensor], value)


def nan_in_a_layer(tensors: Tensors) -> None:
    tensors["blocks.1.mlp.fc2.weight"][3, 5] = torch.nan


def infinite_layer(tensors: Tensors) -> None:
    tensors["blocks.1.attn.out_proj.weight"][3, 5] = -torch.inf


def exchanged_halves(tensors: Tensors) -> None:
    weight = tensors["blocks.0.mlp.fc1.weight"]
    tensors["blocks.0.mlp.fc1.weight"] = torch.cat(weight.chunk(2)[::-1])


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (nan_in_a_layer, r"NaN or Inf in 1 tensors: transformer\.blocks\.1\.mlp\.fc2\.weight"),
        (infinite_layer, r"NaN or Inf in 1 tensors: transformer\.blocks\.1\.attn\.out_proj\.weight"),
        (exchanged_halves, r"gate and up halves are exchanged"),
    ],
)
def test_faults_are_still_seen(plant: object, said: str, copy: Path) -> None:
    rewrite(copy / "transformer", plant)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=said):
        load_component(open_component(open_folder(copy), "transformer", "fl2va"), float8=True)


def test_a_component_without_such_layers_loads_as_ever(original: Path) -> None:
    assert RECIPES["audio_vae"].float8_linears == ()
    loaded = load_component(open_component(open_folder(original), "audio_vae", "fl2va"), float8=True)
    assert not any(isinstance(module, Float8Linear) for module in loaded.modules())
