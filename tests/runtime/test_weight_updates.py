"""A refused update leaves every bit as it was; an accepted one leaves nothing of the old weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from h3serve import Generator
from h3serve.core.errors import CheckpointError, RequestError, WorkerError
from h3serve.pipeline.generation_result import GenerationResult
from h3serve.runtime.machine import Machine
from h3serve.runtime.offload import policy
from h3serve.runtime.weight_updates import Updates
from h3serve.weights.demo.demo_random import write_demo_checkpoint
from h3serve.weights.files.checkpoint_folder import ModelFolder, open_folder
from h3serve.weights.files.tensor_index import read_index
from h3serve.weights.files.tensor_reader import TensorReader
from h3serve.weights.formats.opened_component import open_component
from tests.checkpoints import write_old_and_new
from tests.weights.faults import rewrite

TARGET = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}
REQUEST: dict[str, Any] = {"task": "t2va", "prompt": "rain", "target": TARGET, "num_inference_steps": 2, "seed": 3}
WHERE = ["resident", "offload", "files"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_old_and_new(tmp_path_factory.mktemp("demo"))


def load(folder: Path, where: str, patch: pytest.MonkeyPatch) -> Generator:
    if where == "files":
        patch.setattr(policy, "measure", lambda device: Machine(2**40, 2**40, 2**20, 2**20))
    return Generator.from_pretrained(folder, device="cpu", residency="offload" if where == "files" else where)


def same(a: GenerationResult, b: GenerationResult) -> bool:
    return np.array_equal(a.video, b.video) and np.array_equal(a.audio, b.audio)


@pytest.fixture(scope="module")
def expected(folders: tuple[Path, Path]) -> dict[str, GenerationResult]:
    # The new transformer beside the old encoder and VAEs is what an update is to give.
    old, new = (Generator.from_pretrained(folder, device="cpu", residency="resident") for folder in folders)
    before = old.generate(REQUEST)
    mixed = replace(old.engine, denoisers=new.engine.denoisers, modulations=new.engine.modulations, placements={})
    return {"old": before, "new": Generator(mixed).generate(REQUEST)}


@pytest.mark.parametrize("where", WHERE)
def test_from_disk_replaces_everything(
    folders: tuple[Path, Path],
    expected: dict[str, GenerationResult],
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    generator = load(folders[0], where, monkeypatch)
    assert same(generator.generate(REQUEST), expected["old"])
    generator.engine.updates("fl2va").from_disk(open_folder(folders[1]))
    result = generator.generate(REQUEST)
    assert same(result, expected["new"]) and not same(result, expected["old"])


def refusals(new: ModelFolder, tmp_path: Path) -> dict[str, Any]:
    def torn(update: Updates) -> None:
        folder = tmp_path / "torn"
        write_demo_checkpoint(folder, seed=7)
        shard = next((folder / "FL2VA" / "transformer").glob("*.safetensors"))
        shard.write_bytes(shard.read_bytes()[:-100])
        update.from_disk(open_folder(folder))

    def scaled(update: Updates) -> None:
        folder = tmp_path / "scaled"
        write_demo_checkpoint(folder, seed=7)
        name = "blocks.0.mlp.fc2.weight_scale"
        rewrite(folder / "FL2VA" / "transformer", lambda held: held.update({name: torch.ones(1)}))
        with pytest.raises(CheckpointError) as loading:
            open_component(open_folder(folder), "transformer", "fl2va")
        try:
            update.from_disk(open_folder(folder))
        except CheckpointError as error:
            assert str(error) == str(loading.value), "an update says what a load says"
            raise

    gain = {"transformer.final_layer.norm.weight": torch.ones(64)}
    embed = {"modulation.time_embedder.proj_in.bias": torch.ones(64)}
    projection = {"modulation.blocks.0.adaln_proj.linear.bias": torch.ones(18 * 64)}
    adapter = {"transformer.blocks.0.attn.out_proj.lora_A.weight": torch.ones(4, 64)}
    return {
        "a torn file": torn,
        "scales without a format": scaled,
        "tensors without a source": lambda u: u.from_tensors(gain, None),
        "an unknown name": lambda u: u.from_tensors({"transformer.nothing": torch.ones(1)}, new),
        "a wrong shape": lambda u: u.from_tensors({next(iter(gain)): torch.ones(3)}, new),
        "NaN": lambda u: u.from_tensors({next(iter(gain)): torch.full((64,), float("nan"))}, new),
        "an embedder that is not the source's": lambda u: u.from_tensors(embed, new),
        "a projection as a tensor": lambda u: u.from_tensors(projection, new),
        "an adapter": lambda u: u.from_tensors(adapter, new),
        "an adapter without a source": lambda u: u.from_tensors(adapter, None),
    }


def test_refusals_leave_every_bit_as_it_was(
    folders: tuple[Path, Path], expected: dict[str, GenerationResult], tmp_path: Path
) -> None:
    generator = Generator.from_pretrained(folders[0], device="cpu", residency="resident")
    denoiser = generator.engine.denoisers["fl2va"]
    generator.generate(REQUEST)
    held = {name: value.clone() for name, value in denoiser.state_dict().items() if not value.is_meta}
    tiers = generator.engine.modulations["fl2va"].stats()  # type: ignore[attr-defined]
    for what, attempt in refusals(open_folder(folders[1]), tmp_path).items():
        with pytest.raises((RequestError, CheckpointError)) as caught:
            attempt(generator.engine.updates("fl2va"))
        assert str(caught.value), what
        state = denoiser.state_dict()
        assert all(torch.equal(state[name], value) for name, value in held.items()), what
    assert generator.engine.modulations["fl2va"].stats() == tiers  # type: ignore[attr-defined]
    assert same(generator.generate(REQUEST), expected["old"])


@pytest.mark.parametrize(
    "name",
    [
        "transformer.blocks.0.attn.out_proj.lora_A.weight",
        "transformer_blocks.0.attn.to_q.lora_down.weight",
        "base_model.model.blocks.3.mlp.fc2.lora_B.default.weight",
        "lora_unet_blocks_0_attn_qkv.alpha",
        "blocks.1.mlp.fc1.hada_w1_a",
        "blocks.1.mlp.fc1.lokr_w1",
    ],
)
def test_an_adapter_is_known_by_its_names(folders: tuple[Path, Path], name: str) -> None:
    updates = Updates(*[None] * 5)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="merge it into a checkpoint") as caught:
        updates.validate_lora_layers(["transformer.blocks.0.attn.out_proj.weight", name])
    assert caught.value.value == name
    index = read_index(open_folder(folders[1]).component("transformer", "fl2va").weights)
    updates.validate_lora_layers(index.tensors)


def test_what_was_dropped_is_told(folders: tuple[Path, Path]) -> None:
    generator = Generator.from_pretrained(folders[0], device="cpu", residency="resident")
    generator.generate(REQUEST)
    dropped = generator.engine.updates("fl2va").from_disk(open_folder(folders[1]))
    assert dropped == {"slab_keys": 2, "page_schedules": 1}


@pytest.mark.parametrize("where", ["resident", "offload"])
def test_from_tensors_with_their_source(
    folders: tuple[Path, Path],
    expected: dict[str, GenerationResult],
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    generator = load(folders[0], where, monkeypatch)
    generator.generate(REQUEST)
    theirs = Generator.from_pretrained(folders[1], device="cpu", residency="resident").engine.denoisers["fl2va"]
    tensors = {name: value for name, value in theirs.state_dict().items() if not value.is_meta}
    generator.engine.updates("fl2va").from_tensors(tensors, open_folder(folders[1]))
    assert same(generator.generate(REQUEST), expected["new"])


def test_weights_left_in_files_take_no_tensors(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    generator = load(folders[0], "files", monkeypatch)
    with pytest.raises(RequestError, match="update from disk instead"):
        generator.engine.updates("fl2va").from_tensors({}, open_folder(folders[1]))


def test_an_update_that_breaks_off_says_that_the_model_is_broken(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    generator = Generator.from_pretrained(folders[0], device="cpu", residency="resident")

    def failing(*args: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(TensorReader, "read", failing)
    monkeypatch.setattr(Updates, "validate_weight_update_source", _checked_before(Updates, folders))
    with pytest.raises(WorkerError, match="weights of two checkpoints: the disk is gone"):
        generator.engine.updates("fl2va").from_disk(open_folder(folders[1]))


def _checked_before(cls: type[Updates], folders: tuple[Path, Path]) -> Any:
    """The real check reads with the reader that this test breaks."""
    from h3serve.models.transformer.denoiser import is_projection
    from h3serve.runtime.adaln.rebuild import Projections
    from h3serve.runtime.weight_updates import Source

    def check(self: Updates, folder: ModelFolder) -> Source:
        opened = open_component(folder, "transformer", "fl2va")
        ours = tuple(entry for entry in opened.key_map.entries if not is_projection(entry.target))
        return Source(opened, ours, Projections(opened.index, opened.key_map, torch.float32))

    return check
