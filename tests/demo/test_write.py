"""Packing trained weights, and the checkpoint that comes out of the package."""

import json
from pathlib import Path

import pytest
import torch

from demo.train import denoiser_sizes, sizes
from demo.train.denoiser import Trainee, new_denoiser
from demo.train.loop import save_weights
from demo.train.stage import load_packed
from demo.train.text import new_encoder
from demo.write import pack
from h3serve.core.errors import CheckpointError
from h3serve.models.audio_vae.audio_vae import AudioVAE
from h3serve.models.text_encoder.text_encoder import TextEncoder, TextEncoderConfig
from h3serve.models.transformer.transformer_config import TransformerConfig
from h3serve.models.video_vae.video_vae import VideoVAE
from h3serve.weights.demo import demo_weights
from h3serve.weights.demo.demo_tokenizer import build_tokenizer
from h3serve.weights.demo.demo_trained import digest_of, write_trained_checkpoint
from h3serve.weights.files.checkpoint_folder import open_folder
from h3serve.weights.formats.load import load_component
from h3serve.weights.formats.opened_component import open_component

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def networks() -> dict[str, torch.nn.Module]:
    """Random networks of the trained sizes, the text encoder's later layers as training leaves them."""
    vocabulary = build_tokenizer().get_vocab(with_added_tokens=True)
    encoder = TextEncoder(TextEncoderConfig.from_dict(denoiser_sizes.text_encoder(vocabulary)))
    for layer in encoder.model.language_model.layers[denoiser_sizes.TEXT_LAYERS :]:
        for parameter in layer.parameters():
            parameter.data.zero_()
    config = TransformerConfig.from_dict(denoiser_sizes.transformer())
    fl2va, ref2va = (demo_weights.denoiser(config, torch.Generator().manual_seed(n)) for n in (1, 2))
    return {
        "transformer/fl2va": fl2va,
        "transformer/ref2va": ref2va,
        "text_encoder": encoder,
        "video_vae": VideoVAE(sizes.video_vae_config()),
        "audio_vae": AudioVAE(sizes.audio_vae_config()),
    }


@pytest.fixture(scope="module")
def packed(networks: dict[str, torch.nn.Module], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trained")
    sources = {}
    for name, network in networks.items():
        sources[name] = place / f"{name.replace('/', '_')}.safetensors"
        dtype = torch.float16 if "vae" in name else torch.bfloat16
        save_weights(dict(network.named_parameters()), sources[name], dtype)
    for name, channels in (("video_vae", 24), ("audio_vae", 32)):
        statistics = {"latents_mean": [0.5] * channels, "latents_std": [2.0] * channels}
        (place / f"{name}.json").write_text(json.dumps({"statistics": statistics}))
    build_tokenizer().save(str(place / "tokenizer.json"))
    pack(sources, place / "tokenizer.json", place / "packed")
    return place / "packed"


def test_the_checkpoint_holds_what_was_packed(
    networks: dict[str, torch.nn.Module], packed: Path, tmp_path: Path
) -> None:
    write_trained_checkpoint(tmp_path / "demo", packed)
    model = open_folder(tmp_path / "demo")
    for name, network in networks.items():
        component, _, partition = name.partition("/")
        opened = open_component(model, component, partition or "ref2va")  # type: ignore[arg-type]
        loaded = load_component(opened, dtype=torch.bfloat16).state_dict()
        parameters = dict(network.named_parameters())
        assert set(parameters) <= set(loaded)
        for key, parameter in parameters.items():
            assert torch.allclose(loaded[key].float(), parameter.float(), rtol=2**-7, atol=1e-6), key
        if component == "video_vae":
            assert load_component(open_component(model, name, "fl2va")).config.latents_std == (2.0,) * 24


def test_shared_files_are_there_once(packed: Path, tmp_path: Path) -> None:
    write_trained_checkpoint(tmp_path / "demo", packed)
    for part in ("text_encoder/model-00001-of-00002", "video_vae/source/model", "audio_vae/model"):
        one, other = (tmp_path / "demo" / name / f"{part}.safetensors" for name in ("FL2VA", "Ref2VA"))
        assert one.samefile(other)
    assert not (tmp_path / "demo/FL2VA/transformer").samefile(tmp_path / "demo/Ref2VA/transformer")


def test_idle_layers_are_not_packed(packed: Path) -> None:
    assert (packed / "text_encoder.safetensors").stat().st_size < 2_000_000
    assert sum(file.stat().st_size for file in packed.iterdir()) < 40_000_000


def test_a_file_that_is_not_the_packed_one(packed: Path, tmp_path: Path) -> None:
    other = tmp_path / "packed"
    other.mkdir()
    for file in packed.iterdir():
        (other / file.name).symlink_to(file)
    (other / "audio_vae.safetensors").unlink()
    (other / "audio_vae.safetensors").write_bytes(b"cut off")
    with pytest.raises(CheckpointError, match=r"audio_vae\.safetensors is not what was packed"):
        write_trained_checkpoint(tmp_path / "demo", other)
    (other / "audio_vae.safetensors").unlink()
    with pytest.raises(CheckpointError, match="install the package again"):
        write_trained_checkpoint(tmp_path / "demo", other)


def test_a_missing_tensor(packed: Path, tmp_path: Path) -> None:
    other = tmp_path / "packed"
    other.mkdir()
    for file in packed.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    audio = AudioVAE(sizes.audio_vae_config())
    save_weights(dict(list(audio.named_parameters())[1:]), other / "audio_vae.safetensors")
    manifest = json.loads((other / "config.json").read_text())
    manifest["files"]["audio_vae.safetensors"] = digest_of(other / "audio_vae.safetensors")
    (other / "config.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"encoder\.block\.0\.weight_g is missing"):
        write_trained_checkpoint(tmp_path / "demo", other)


@pytest.mark.parametrize("partition", ["fl2va", "ref2va"])
def test_training_goes_on_from_packed_weights(networks, packed: Path, partition) -> None:
    trainee = Trainee(new_encoder(build_tokenizer(), seed=5), new_denoiser(seed=5))
    load_packed(trainee, packed, partition)
    for module, name in ((trainee.encoder, "text_encoder"), (trainee.denoiser, f"transformer/{partition}")):
        expected = dict(networks[name].named_parameters())
        for key, value in module.named_parameters():
            if expected[key].any():  # layers that add nothing are not in the file
                assert torch.equal(value, expected[key].bfloat16().float()), key
