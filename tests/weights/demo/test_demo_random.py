"""The demo checkpoint: two layouts of the same weights, the same bytes from a seed, and weights that behave."""

from __future__ import annotations

import filecmp
import hashlib
from pathlib import Path

import pytest
import torch

from h3serve.core.errors import OutputError, RequestError
from h3serve.models.text_encoder.text_encoder import EncoderInput
from h3serve.weights.demo import demo_random
from h3serve.weights.demo.demo_random import write_demo_checkpoint
from h3serve.weights.files.checkpoint_folder import open_folder
from h3serve.weights.files.tensor_index import read_index
from h3serve.weights.formats.components import RECIPES
from h3serve.weights.formats.load import load_component
from h3serve.weights.formats.opened_component import open_component
from h3serve.weights.formats.tokenizer_files import check_processor_files, load_tokenizer


def digests(root: Path) -> dict[str, str]:
    files = sorted(file for file in root.rglob("*") if file.is_file())
    return {str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("partition", ["fl2va", "ref2va"])
@pytest.mark.parametrize("name", list(RECIPES))
def test_both_layouts_load_to_the_same_state(name: str, partition: str, original: Path, diffusers: Path) -> None:
    one, other = (
        load_component(open_component(open_folder(root), name, partition), dtype=torch.bfloat16).state_dict()
        for root in (original, diffusers)
    )
    assert list(one) == list(other)
    for tensor in one:
        assert one[tensor].dtype == other[tensor].dtype
        assert torch.equal(one[tensor], other[tensor]), tensor


def test_partitions_differ(original: Path) -> None:
    model = open_folder(original)
    one, other = (load_component(open_component(model, "transformer", p)).state_dict() for p in ("fl2va", "ref2va"))
    assert all(not torch.equal(one[name], other[name]) for name in one)


def test_same_seed_same_bytes(original: Path, tmp_path: Path) -> None:
    write_demo_checkpoint(tmp_path / "again", "original", seed=0)
    assert digests(tmp_path / "again") == digests(original)
    write_demo_checkpoint(tmp_path / "other", "original", seed=1)
    changed = {name for name, digest in digests(tmp_path / "other").items() if digests(original)[name] != digest}
    weights = {name for name in digests(original) if name.endswith(".safetensors")}
    assert weights <= changed


def test_small(original: Path, diffusers: Path) -> None:
    for root in (original, diffusers):
        inodes = {file.stat().st_ino: file.stat().st_size for file in root.rglob("*") if file.is_file()}
        assert sum(inodes.values()) < 25e6


def test_what_is_dropped_is_there_to_be_dropped(original: Path) -> None:
    model = open_folder(original)
    stored = read_index(model.component("text_encoder", "fl2va").weights).tensors
    assert "lm_head.weight" in stored and "model.language_model.layers.50.mlp.up_proj.weight" in stored
    assert "rope.inv_freq" in read_index(model.component("transformer", "fl2va").weights).tensors
    assert "decoder.mask_token" in read_index(model.component("video_vae", "fl2va").weights).tensors


def test_stored_dtypes_are_the_release_s(original: Path) -> None:
    stored = read_index(open_folder(original).component("transformer", "fl2va").weights).tensors
    float32 = {name for name, tensor in stored.items() if tensor.dtype == torch.float32}
    prefixes = {name.split(".")[0] if "final" not in name else ".".join(name.split(".")[:2]) for name in float32}
    islands = {"video_patch_proj", "audio_patch_proj", "time_embedder", "rope"}
    assert prefixes == islands | {"final_layer.video_out", "final_layer.audio_out"}
    assert {stored[name].dtype for name in set(stored) - float32} == {torch.bfloat16}


def test_pictures_are_neither_flat_nor_saturated(original: Path) -> None:
    vae = load_component(open_component(open_folder(original), "video_vae", "fl2va"), dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    frames = vae.decode_all(torch.randn(1, 24, 7, 4, 6, generator=generator))
    assert frames.shape == (22, 64, 96, 3)
    assert 0.05 < frames.std() < 0.4
    assert ((frames <= 0) | (frames >= 1)).float().mean() < 0.05


def test_sound_is_neither_silent_nor_clipped(original: Path) -> None:
    vae = load_component(open_component(open_folder(original), "audio_vae", "fl2va"))
    sound = vae.decode(torch.randn(2, 32, 40, generator=torch.Generator().manual_seed(0)))
    assert 0.1 < sound.std() < 0.4
    assert (sound.abs() >= 1).float().mean() < 0.01
    assert vae.encode(sound).isfinite().all()


def test_tokenizer_and_encoder_belong_together(original: Path) -> None:
    model = open_folder(original)
    encoder = load_component(open_component(model, "text_encoder", "fl2va"), dtype=torch.float32)
    tokenizer = load_tokenizer(model.component("tokenizer", "fl2va").folder, encoder.config)
    check_processor_files(model.component("processor", "fl2va").folder)
    assert filecmp.cmp(original / "FL2VA/tokenizer/tokenizer.json", original / "FL2VA/processor/tokenizer.json")
    one, other = (
        tokenizer.ids(f"{word} walks through the rain: <d>hé, 你好 12</d>\n") for word in ("A woman", "A cat")
    )
    assert len(one) < 60 and max(one) < tokenizer.size < 500
    states = [
        encoder.encode(EncoderInput(torch.tensor(ids), torch.zeros(len(ids), dtype=torch.long))) for ids in (one, other)
    ]
    assert all(s.isfinite().all() for s in states)
    assert (states[0][-1] - states[1][-1]).abs().mean() > 0.1  # the last token still hears the first


def test_a_folder_in_use_is_left_alone(original: Path, tmp_path: Path) -> None:
    before = digests(original)
    with pytest.raises(RequestError, match="folder: .* it must be new or empty"):
        write_demo_checkpoint(original)
    assert digests(original) == before
    (tmp_path / "file").write_text("x")
    with pytest.raises(RequestError, match="it must be new or empty"):
        write_demo_checkpoint(tmp_path / "file")
    with pytest.raises(RequestError, match="layout: 'gguf' .* original or diffusers"):
        write_demo_checkpoint(tmp_path / "new", "gguf")


def test_nothing_is_left_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(demo_random, "save_shards", full)
    with pytest.raises(OutputError, match=r"could not be written: .*No space left"):
        write_demo_checkpoint(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
