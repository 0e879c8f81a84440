"""The released configs and tensor indexes: our key maps cover exactly what the release stores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch

from h3serve.models.key_map import KeyMap, Layout
from h3serve.weights.files.checkpoint_folder import open_folder
from h3serve.weights.formats.components import RECIPES, build_on_meta
from tests.paths import official

# (layout, component, partition) -> tensors and bytes of the published index, and parameters of ours
RELEASED = {
    ("original", "transformer", "fl2va"): (535, 66_280_430_144, 33_122_992_896),
    ("original", "text_encoder", "fl2va"): (1058, 66_714_780_128, None),
    ("diffusers", "transformer", "fl2va"): (638, 66_280_430_080, 33_122_992_896),
    ("diffusers", "video_vae", "fl2va"): (703, 10_415_475_936, 2_603_868_984),
}


def index_of(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("*.safetensors.index.json")
    return json.loads(file.read_text())


def ours(layout: Layout, name: str, config: Mapping[str, Any]) -> tuple[KeyMap, dict[str, torch.Tensor]]:
    recipe = RECIPES[name]
    read = recipe.read_config(config)
    return recipe.key_map(read, layout), build_on_meta(recipe, read).state_dict()


def is_unused(name: str, key_map: KeyMap) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in key_map.unused)


@pytest.mark.parametrize(("layout", "name", "partition"), RELEASED)
def test_names_parameters_and_bytes(layout: Layout, name: str, partition: str) -> None:
    root = official() / "FL2VA" if layout == "original" else official()
    folder = root / ("vae" if name == "video_vae" else name)
    key_map, state = ours(layout, name, json.loads((folder / "config.json").read_text()))
    index = index_of(folder)
    stored, wanted = set(index["weight_map"]), {source for entry in key_map.entries for source in entry.sources}
    count, total, parameters = RELEASED[layout, name, partition]
    assert (len(stored), index["metadata"]["total_size"]) == (count, total)
    assert wanted == {source for source in stored if not is_unused(source, key_map)}
    assert len(wanted) == sum(len(entry.sources) for entry in key_map.entries), "a source is read twice"
    assert {entry.target for entry in key_map.entries} == set(state)
    if parameters:
        assert sum(tensor.numel() for tensor in state.values()) == parameters
    assert stored_bytes(name, state) + unused_bytes(layout, name, state) == total


def stored_bytes(name: str, state: Mapping[str, torch.Tensor]) -> int:
    """In the release's dtypes: bfloat16 with float32 islands, and a float32 VAE."""
    dtype_of = RECIPES[name].dtype_of
    stored = torch.float32 if name.endswith("vae") else torch.bfloat16
    return sum(tensor.numel() * dtype_of(key, stored).itemsize for key, tensor in state.items())


def unused_bytes(layout: Layout, name: str, state: Mapping[str, torch.Tensor]) -> int:
    """What is stored and never read: 16 float32 frequencies; 14 layers, the last norm and the head."""
    if name == "transformer":
        return 64 if layout == "original" else 0
    if name != "text_encoder":
        return 0
    layer = sum(t.numel() for key, t in state.items() if ".language_model.layers.0." in key)
    embeddings = state["model.language_model.embed_tokens.weight"]
    return 2 * (14 * layer + embeddings.shape[1] + embeddings.numel())


def test_text_encoder_stops_after_layer_49() -> None:
    key_map, _ = ours(
        "original", "text_encoder", json.loads((official() / "FL2VA/text_encoder/config.json").read_text())
    )
    layers = {int(e.target.split(".")[3]) for e in key_map.entries if ".language_model.layers." in e.target}
    assert layers == set(range(50))
    stored = index_of(official() / "FL2VA" / "text_encoder")["weight_map"]
    unused = {name for name in stored if is_unused(name, key_map)}
    beyond = {name for name in stored if ".language_model.layers." in name and int(name.split(".")[3]) >= 50}
    assert unused == beyond | {"lm_head.weight", "model.language_model.norm.weight"}


def test_both_layouts_give_the_same_configs_and_modules() -> None:
    original = open_folder(official())
    assert original.layout == "original"
    assert list(original.partitions) == ["fl2va", "ref2va"]
    for name, ours_name in (("transformer", "transformer"), ("vae", "video_vae"), ("audio_vae", "audio_vae")):
        read = RECIPES[ours_name].read_config
        theirs = read(json.loads((official() / name / "config.json").read_text()))
        assert read(original.component(ours_name, "fl2va").config) == theirs
