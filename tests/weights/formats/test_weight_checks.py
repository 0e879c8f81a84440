"""Every fault planted into the demo checkpoint is caught, and called by its name."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from h3serve.core.errors import CheckpointError
from h3serve.models.key_map import split_heads_interleaved, swap_halves
from h3serve.weights.demo.demo_sizes import transformer
from h3serve.weights.files.checkpoint_folder import ModelFolder, open_folder
from h3serve.weights.files.tensor_index import read_index
from h3serve.weights.formats.checksums import CHECKED, FILE, Checksum, read_checksums
from h3serve.weights.formats.components import RECIPES
from h3serve.weights.formats.inspection import record
from h3serve.weights.formats.load import load_component
from h3serve.weights.formats.opened_component import open_component
from h3serve.weights.formats.weight_checks import examine
from tests.weights.faults import rewrite

Tensors = dict[str, torch.Tensor]
QKV, FC1 = "blocks.0.attn.qkv_proj.weight", "blocks.0.mlp.fc1.weight"
REORDER, RESTORE = split_heads_interleaved(heads=4, head_dim=128)


def load(folder: Path, name: str = "transformer", dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    model = open_folder(folder)
    return load_component(open_component(model, name, next(iter(model.partitions))), dtype=dtype)


def stacked_qkv(tensors: Tensors) -> None:
    for name in tensors:
        if name.endswith("qkv_proj.weight"):
            tensors[name] = REORDER(tensors[name]).contiguous()


def twice_grouped_qkv(tensors: Tensors) -> None:
    for name in tensors:
        if name.endswith("qkv_proj.weight"):
            tensors[name] = RESTORE(tensors[name]).contiguous()


def up_before_gate(tensors: Tensors) -> None:
    for name in tensors:
        if name.endswith("mlp.fc1.weight"):
            tensors[name] = swap_halves(tensors[name])


def nan(tensors: Tensors) -> None:
    tensors["blocks.2.norm1.weight"][3] = torch.nan


def infinite(tensors: Tensors) -> None:
    tensors["blocks.1.adaln_proj.linear.bias"][-1] = -torch.inf


def one_value(tensors: Tensors) -> None:
    tensors["final_layer.video_out.weight"][0, 0] += 0.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (stacked_qkv, r"blocks\.0\.attn\.qkv_proj.*QKV rows are stacked where rows grouped per head were expected"),
        (twice_grouped_qkv, r"qkv_proj.*QKV rows are grouped per head where stacked ones were expected"),
        (up_before_gate, r"blocks\.0\.mlp\.fc1.*gate and up halves are exchanged"),
        (nan, r"NaN or Inf in 1 tensors: transformer\.blocks\.2\.norm1\.weight"),
        (infinite, r"NaN or Inf in 1 tensors: modulation\.blocks\.1\.adaln_proj\.linear\.bias"),
        (one_value, r"final_layer\.video_out\.weight: it holds other values than were recorded"),
    ],
)
def test_planted_fault(plant: Callable[[Tensors], None], said: str, dtype: torch.dtype, copy: Path) -> None:
    rewrite(copy / "transformer", plant)
    with pytest.raises(CheckpointError, match=said):
        load(copy, dtype=dtype)


@pytest.mark.parametrize(
    ("name", "said"), [("to_qkv", "stacked where rows grouped"), ("ff.w1", "gate and up halves are exchanged")]
)
def test_planted_fault_in_the_video_vae(name: str, said: str, copy: Path) -> None:
    reorder, _ = split_heads_interleaved(heads=2, head_dim=64)

    def plant(tensors: Tensors) -> None:
        for tensor in tensors:
            if name in tensor:
                change = reorder if name == "to_qkv" else swap_halves
                tensors[tensor] = change(tensors[tensor]).contiguous()

    rewrite(copy / "video_vae" / "source", plant)
    with pytest.raises(CheckpointError, match=said):
        load(copy, "video_vae")


def test_exchanged_sources_of_the_diffusers_layout(diffusers: Path, tmp_path: Path) -> None:
    root = shutil.copytree(diffusers, tmp_path / "copy")

    def plant(tensors: Tensors) -> None:
        block = "transformer_blocks.0.attn.to_"
        tensors[f"{block}q.weight"], tensors[f"{block}k.weight"] = (
            tensors[f"{block}k.weight"],
            tensors[f"{block}q.weight"],
        )

    rewrite(root / "transformer", plant)
    with pytest.raises(CheckpointError, match=r"qkv_proj\.weight: it holds other values"):
        load(root)


def test_exchanged_partitions(original: Path, diffusers: Path, tmp_path: Path) -> None:
    said = r"these are the weights of transformer/ref2va, not of transformer/fl2va"
    root = shutil.copytree(original, tmp_path / "original")
    shutil.rmtree(root / "FL2VA" / "transformer")
    shutil.copytree(root / "Ref2VA" / "transformer", root / "FL2VA" / "transformer")
    with pytest.raises(CheckpointError, match=said):
        load(root)
    root = shutil.copytree(diffusers, tmp_path / "diffusers")
    shutil.rmtree(root / "transformer")
    (root / "transformer_ref").rename(root / "transformer")
    with pytest.raises(CheckpointError, match=said):
        load(root)


def test_exchanged_partition_marker(original: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(original / "Ref2VA", tmp_path / "mine")
    shutil.copyfile(original / "FL2VA" / "model_index.json", folder / "model_index.json")
    with pytest.raises(CheckpointError, match="these are the weights of transformer/ref2va, not of transformer/fl2va"):
        load(folder)


def test_truncated_shard(copy: Path) -> None:
    shard = copy / "transformer" / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors is cut off"):
        load(copy)


def test_renamed_and_missing_weight_file(copy: Path) -> None:
    shard = copy / "transformer" / "model-00002-of-00002.safetensors"
    shard.rename(shard.with_name("other.safetensors"))
    with pytest.raises(CheckpointError, match=r"weight file missing: model-00002-of-00002\.safetensors"):
        load(copy)


def unrecorded(folder: Path, plant: Callable[[Tensors], None] | None = None) -> Path:
    for file in [folder / FILE, *folder.glob(f"*/{FILE}")]:
        file.unlink(missing_ok=True)
    if plant:
        rewrite(folder / "transformer", plant)
    return folder


def order_of(model: ModelFolder) -> tuple[str, str]:
    recipe = RECIPES["transformer"]
    config = recipe.read_config(transformer("original"))
    state = load_component(open_component(model, "transformer", "fl2va")).state_dict()
    found = examine("transformer", "fl2va", tensors=state, original=recipe.key_map(config, "original"), recorded={})
    return next((finding.level, finding.text) for finding in found if finding.check == "order")


def test_without_a_record_random_weights_give_no_opinion(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    level, text = order_of(open_folder(unrecorded(copy)))
    assert level == "unknown" and "no clue" in text
    assert not caplog.records


def test_without_a_record_a_likely_wrong_order_warns(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Gate rows with a common direction, as training gives them, in the wrong half."""

    def plant(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith("mlp.fc1.weight"):
                gate, up = tensors[name].float().chunk(2)
                tensors[name] = torch.cat([up, gate - 0.3 * gate.std()]).bfloat16()

    with caplog.at_level(logging.WARNING):
        load(unrecorded(copy, plant))
    assert "the row order may be wrong (statistics, no proof)" in caplog.text
    assert "the second half looks like the gate" in caplog.text


def test_islands_stored_too_coarsely_warn(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    def plant(tensors: Tensors) -> None:
        tensors["time_embedder.proj_in.weight"] = tensors["time_embedder.proj_in.weight"].bfloat16()

    with caplog.at_level(logging.WARNING):
        load(unrecorded(copy, plant))
    assert "1 tensors that the release keeps in float32 are stored coarser: time_embedder.proj_in.weight" in caplog.text


def test_a_good_checkpoint_is_quiet(original: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in RECIPES:
        load(original, name)
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"schema_version": 2}', "schema_version must be 1"),
        ('{"schema_version": 1}', "its probes are damaged"),
        ('{"schema_version": 1, "probes": {"audio_vae": {"x": {"rows": "a", "values": []}}}}', "probes are damaged"),
    ],
)
def test_damaged_record(text: str, reason: str, copy: Path) -> None:
    (copy / FILE).write_text(text)
    with pytest.raises(CheckpointError, match=reason):
        load(copy)


def test_a_record_of_a_tensor_that_the_model_does_not_have(copy: Path) -> None:
    file = copy / FILE
    record_of_all = json.loads(file.read_text())
    of_one = record_of_all["probes"]["transformer/fl2va"]
    of_one["blocks.99.attn.qkv_proj.weight"] = next(iter(of_one.values()))
    file.write_text(json.dumps(record_of_all))
    with pytest.raises(
        CheckpointError, match=r"blocks\.99\.attn\.qkv_proj\.weight: recorded, but not part of the model"
    ):
        load(copy)


def test_checksumd_tensors_exist(original: Path) -> None:
    model = open_folder(original)
    recorded = read_checksums(original / "FL2VA")
    assert set(recorded) == {"transformer/fl2va", "transformer/ref2va", "text_encoder", "video_vae", "audio_vae"}
    for name, recipe in RECIPES.items():
        component = model.component(name, "fl2va")
        targets = {e.target for e in recipe.key_map(recipe.read_config(component.config), "original").entries}
        assert set(CHECKED[name]) <= targets
        assert read_index(component.weights).total_bytes > 0


def test_checksum_in_another_dtype() -> None:
    tensor = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    checksum = Checksum.take(tensor)
    assert checksum.matches(tensor) and checksum.matches(tensor.bfloat16()) and checksum.matches(tensor.half())
    assert not checksum.matches(tensor.roll(1, 0))
    assert Checksum.take(torch.ones(1)).matches(torch.ones(1))


def test_a_good_checkpoint_of_somebody_else_can_be_recorded(copy: Path) -> None:
    unrecorded(copy)
    record(open_folder(copy))
    load(copy)
    rewrite(copy / "transformer", up_before_gate)
    with pytest.raises(CheckpointError, match="gate and up halves are exchanged"):
        load(copy)
