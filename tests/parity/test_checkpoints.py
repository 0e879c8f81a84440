"""Checkpoints exchanged with diffusers, as files: theirs load in ours, ours load in theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from h3serve.weights.demo.demo_random import write_demo_checkpoint
from h3serve.weights.files.checkpoint_folder import open_folder
from h3serve.weights.formats.components import RECIPES
from h3serve.weights.formats.load import load_component
from h3serve.weights.formats.opened_component import open_component
from tests import keymaps

diffusers = pytest.importorskip("diffusers")

CLASSES = {
    "transformer": ("transformer", "MiniMaxH3Transformer3DModel"),
    "video_vae": ("vae", "AutoencoderKLMiniMaxH3"),
    "audio_vae": ("audio_vae", "AutoencoderKLMiniMaxH3Audio"),
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "diffusers"
    write_demo_checkpoint(folder, "diffusers")
    return folder


@pytest.mark.parametrize("name", CLASSES)
def test_ours_in_theirs_and_back(name: str, demo: Path, tmp_path: Path) -> None:
    """diffusers reads our demo with nothing missing, and we read what it saves: the same state."""
    folder, class_name = CLASSES[name]
    theirs, report = getattr(diffusers, class_name).from_pretrained(
        demo / folder, output_loading_info=True, torch_dtype=torch.float32
    )
    assert not any(report.values()), report
    theirs.save_pretrained(tmp_path / folder)
    for other in ("transformer", "scheduler", "audio_scheduler"):
        if other != folder:
            (tmp_path / other).symlink_to(demo / other)
    ours = load_component(open_component(open_folder(demo), name, "fl2va"), dtype=torch.float32).state_dict()
    again = load_component(open_component(open_folder(tmp_path), name, "fl2va"), dtype=torch.float32).state_dict()
    assert list(ours) == list(again)
    for tensor in ours:
        assert torch.equal(ours[tensor], again[tensor]), tensor


@pytest.mark.parametrize("name", CLASSES)
def test_from_files_as_from_memory(name: str, demo: Path) -> None:
    """The streaming load gives what the key map, applied in memory to diffusers' state, gives."""
    folder, class_name = CLASSES[name]
    theirs = getattr(diffusers, class_name).from_pretrained(demo / folder, torch_dtype=torch.float32)
    recipe, model = RECIPES[name], open_folder(demo)
    config = recipe.read_config(model.component(name, "fl2va").config)
    module = recipe.build(config)
    keymaps.load(module, theirs.state_dict(), recipe.key_map(config, "diffusers"))
    expected = module.state_dict()
    loaded = load_component(open_component(model, name, "fl2va"), dtype=torch.float32).state_dict()
    assert all(torch.equal(loaded[tensor], expected[tensor].float()) for tensor in expected)


def test_the_text_encoder_in_transformers(demo: Path) -> None:
    """transformers reads the demo's encoder whole, and holds the same first 50 layers."""
    from transformers import Qwen3VLForConditionalGeneration

    theirs, report = Qwen3VLForConditionalGeneration.from_pretrained(
        demo / "text_encoder", output_loading_info=True, dtype=torch.float32
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    ours = load_component(open_component(open_folder(demo), "text_encoder", "fl2va"), dtype=torch.float32).state_dict()
    state = theirs.state_dict()
    assert all(torch.equal(ours[tensor], state[tensor]) for tensor in ours)
