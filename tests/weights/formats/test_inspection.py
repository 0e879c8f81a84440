"""What `inspect` reports of a checkpoint, and that it refuses a broken one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from h3serve.core.errors import CheckpointError
from h3serve.weights.files.checkpoint_folder import SigmaShifts, open_folder
from h3serve.weights.formats.checksums import FILE
from h3serve.weights.formats.inspection import inspect_model
from tests.weights.faults import rewrite


def test_original(original: Path) -> None:
    seen = inspect_model(open_folder(original))
    assert (seen.root, seen.layout, seen.verdict) == (original, "original", "ok")
    assert seen.partitions == {"fl2va": ("t2va", "fl2va"), "ref2va": ("ref2va",)}
    assert seen.shifts["ref2va"] == SigmaShifts(12.0, 3.0)
    assert len(seen.components) == 8  # both partitions hold everything
    transformer = seen.components[0]
    assert (transformer.name, transformer.partition, transformer.files) == ("transformer", "fl2va", 2)
    assert (transformer.tensors, transformer.unused) == (75, 1)
    assert transformer.dtypes == {"bfloat16": 62, "float32": 13}
    assert transformer.bytes == sum(f.stat().st_size for f in transformer.folder.glob("*.safetensors")) - headers(
        transformer.folder
    )


def headers(folder: Path) -> int:
    return sum(8 + int.from_bytes(f.read_bytes()[:8], "little") for f in folder.glob("*.safetensors"))


def test_diffusers_shares_its_components(diffusers: Path, original: Path) -> None:
    seen = inspect_model(open_folder(diffusers))
    assert [c.name for c in seen.components] == [
        "transformer",
        "text_encoder",
        "video_vae",
        "audio_vae",
        "transformer",
    ]
    others = {(c.name, c.partition): c.parameters for c in inspect_model(open_folder(original)).components}
    assert all(c.parameters == others[c.name, c.partition] for c in seen.components)


def test_without_a_record_the_verdict_is_unknown(copy: Path) -> None:
    (copy / FILE).unlink()
    assert inspect_model(open_folder(copy)).verdict == "unknown"


def test_a_fault_is_the_verdict(copy: Path) -> None:
    def plant(tensors: dict[str, torch.Tensor]) -> None:
        tensors["quant_conv.weight"][0] = torch.nan

    rewrite(copy / "video_vae" / "source", plant)
    seen = inspect_model(open_folder(copy))
    assert seen.verdict == "fault"
    assert any("NaN or Inf in 1 tensors: quant_conv.weight" in f.text for c in seen.components for f in c.findings)


def test_broken(copy: Path) -> None:
    shutil.rmtree(copy / "audio_vae")
    with pytest.raises(CheckpointError, match="audio_vae is missing"):
        inspect_model(open_folder(copy))
