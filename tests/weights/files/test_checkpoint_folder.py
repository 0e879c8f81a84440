"""Which layout and which partitions a folder holds; every wrong folder is one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from h3serve.core.errors import CheckpointError, RequestError
from h3serve.weights.files.checkpoint_folder import SigmaShifts, open_folder

TASKS = {"fl2va": ["t2va", "fl2va"], "ref2va": ["ref2va"]}


def write_json(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value))


def marker(of: str, **changes: Any) -> dict[str, Any]:
    block = {
        "schema_version": 1,
        "partition": of,
        "tasks": TASKS[of],
        "task_aliases": {},
        "sigma_shift_scales": {"video": 12.0, "audio": 3.0},
    }
    return {"_class_name": "MiniMaxH3Pipeline", "_minimax_h3": block | changes}


def write_original(folder: Path, partition: str) -> Path:
    write_json(folder / "model_index.json", marker(partition))
    write_json(folder / "transformer" / "config.json", {"hidden_size": 64})
    write_json(folder / "video_vae" / "config.json", {"vae_clip_length": 17})
    write_json(folder / "video_vae" / "source" / "config.json", {"ch": 128})
    write_json(folder / "audio_vae" / "config.json", {"sample_rate": 32000})
    write_json(folder / "audio_vae" / "metadata.json", {"metadata": {"kwargs": {}}})
    write_json(folder / "tokenizer" / "tokenizer_config.json", {"model_max_length": 9})
    return folder


def write_diffusers(root: Path, *transformers: str) -> Path:
    for name in transformers:
        write_json(root / name / "config.json", {"hidden_size": 64})
    write_json(root / "vae" / "config.json", {"clip_length": 17})
    write_json(root / "scheduler" / "scheduler_config.json", {"shift": 12.0})
    write_json(root / "audio_scheduler" / "scheduler_config.json", {"shift": 3.0})
    return root


def test_original_root(tmp_path: Path) -> None:
    write_original(tmp_path / "FL2VA", "fl2va")
    write_original(tmp_path / "Ref2VA", "ref2va")
    model = open_folder(tmp_path)
    assert model.layout == "original"
    assert list(model.partitions) == ["fl2va", "ref2va"]
    assert model.partition("ref2va").folder == tmp_path / "Ref2VA"
    assert model.partition("ref2va").tasks == ("ref2va",)
    assert model.partition("fl2va").shifts == SigmaShifts(video=12.0, audio=3.0)
    assert model.component("transformer", "ref2va").folder == tmp_path / "Ref2VA" / "transformer"


def test_original_vaes_keep_their_config_in_two_files(tmp_path: Path) -> None:
    model = open_folder(write_original(tmp_path, "fl2va"))
    video = model.component("video_vae", "fl2va")
    assert video.config == {"vae_clip_length": 17, "ch": 128}
    assert video.weights == tmp_path / "video_vae" / "source"
    audio = model.component("audio_vae", "fl2va")
    assert audio.config == {"sample_rate": 32000, "metadata": {"kwargs": {}}}
    assert audio.weights == tmp_path / "audio_vae"


@pytest.mark.parametrize("name", ["FL2VA", "anything"])
def test_one_original_partition_by_itself(name: str, tmp_path: Path) -> None:
    model = open_folder(write_original(tmp_path / name, "fl2va"))
    assert (model.layout, list(model.partitions)) == ("original", ["fl2va"])


def test_diffusers(tmp_path: Path) -> None:
    model = open_folder(write_diffusers(tmp_path, "transformer", "transformer_ref"))
    assert (model.layout, list(model.partitions)) == ("diffusers", ["fl2va", "ref2va"])
    assert model.component("transformer", "ref2va").weights == tmp_path / "transformer_ref"
    assert model.component("video_vae", "ref2va").config == {"clip_length": 17}


def test_the_original_layout_is_preferred(tmp_path: Path) -> None:
    write_diffusers(tmp_path, "transformer")
    write_original(tmp_path / "FL2VA", "fl2va")
    assert open_folder(tmp_path).layout == "original"


def test_shifts_are_read(tmp_path: Path) -> None:
    root = write_diffusers(tmp_path, "transformer")
    write_json(root / "audio_scheduler" / "scheduler_config.json", {"shift": 4})
    assert open_folder(root).partition("fl2va").shifts == SigmaShifts(12.0, 4.0)


def test_task_decides_the_partition(tmp_path: Path) -> None:
    model = open_folder(write_original(tmp_path, "fl2va"))
    assert model.partition_for("t2va") == model.partition_for("fl2va") == "fl2va"
    with pytest.raises(RequestError, match="task: 'ref2va' .* has no ref2va weights; it does t2va, fl2va"):
        model.partition_for("ref2va")
    with pytest.raises(CheckpointError, match=r"holds the fl2va weights only; .* Ref2VA/ or transformer_ref/"):
        model.component("transformer", "ref2va")


def test_partition_in_the_folder_of_the_other(tmp_path: Path) -> None:
    write_original(tmp_path / "FL2VA", "ref2va")
    for folder in (tmp_path, tmp_path / "FL2VA"):
        with pytest.raises(CheckpointError, match="says partition ref2va, but its folder is FL2VA"):
            open_folder(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schema_version": 2}, "schema_version 1"),
        ({"partition": "v2va"}, "partition is 'v2va'"),
        ({"partition": ["fl2va"]}, "partition is "),
        ({"tasks": 5}, "tasks 5 do not belong to fl2va"),
        ({"sigma_shift_scales": 5}, "the video sigma shift is None"),
        ({"tasks": ["ref2va"]}, r"tasks \['ref2va'\] do not belong to fl2va"),
        ({"sigma_shift_scales": {"video": 12.0}}, "the audio sigma shift is None"),
        ({"sigma_shift_scales": {"video": float("nan"), "audio": 3.0}}, "the video sigma shift is nan"),
        ({"dmd_denoising_steps": [1000, 500]}, r"distilled release \(dmd_denoising_steps\)"),
    ],
)
def test_marker_block(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    write_json(tmp_path / "model_index.json", marker("fl2va", **changes))
    with pytest.raises(CheckpointError, match=reason):
        open_folder(tmp_path)


def test_partition_folder_without_index(tmp_path: Path) -> None:
    write_original(tmp_path / "FL2VA", "fl2va")
    (tmp_path / "FL2VA" / "model_index.json").unlink()
    with pytest.raises(CheckpointError, match=r"FL2VA/model_index\.json is missing"):
        open_folder(tmp_path)


def test_partition_folder_without_marker(tmp_path: Path) -> None:
    write_json(tmp_path / "FL2VA" / "model_index.json", {"_class_name": "x"})
    with pytest.raises(CheckpointError, match="has no _minimax_h3 block"):
        open_folder(tmp_path)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    root = write_diffusers(tmp_path, "transformer")
    shutil.rmtree(root / "vae")
    with pytest.raises(CheckpointError, match="vae is missing: the checkpoint has no video_vae"):
        open_folder(root).component("video_vae", "fl2va")
    (root / "transformer" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"transformer/config\.json is missing"):
        open_folder(root).component("transformer", "fl2va")
    shutil.rmtree(root / "scheduler")
    with pytest.raises(CheckpointError, match=r"scheduler/scheduler_config\.json is missing"):
        open_folder(root)


def test_damaged_json(tmp_path: Path) -> None:
    root = write_diffusers(tmp_path, "transformer")
    (root / "transformer" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json does not parse as JSON"):
        open_folder(root).component("transformer", "fl2va")


def test_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a MiniMax-H3 checkpoint"):
        open_folder(tmp_path)
    with pytest.raises(CheckpointError, match="is not a folder"):
        open_folder(tmp_path / "nowhere")
