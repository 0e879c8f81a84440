"""Recorded requests of the reference pipeline: presentation, positions, patches and states."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from h3serve.models.text_encoder.text_encoder import TextEncoder, TextEncoderConfig, key_map, mrope_positions
from h3serve.models.text_encoder.tokenizer import Tokenizer
from h3serve.pipeline.prompt_builder import BuiltPrompt, Shown, ShownAudio, ShownImage, ShownVideo, present
from h3serve.weights.formats.tokenizer_files import load_tokenizer
from tests.parity.recorded import CASES

MOST_REFERENCES = 3
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def config(oracle_checkpoint: Path) -> TextEncoderConfig:
    return TextEncoderConfig.from_dict(json.loads((oracle_checkpoint / "text_encoder/config.json").read_text()))


@pytest.fixture(scope="module")
def tokenizer(oracle_checkpoint: Path, config: TextEncoderConfig) -> Tokenizer:
    return load_tokenizer(oracle_checkpoint / "tokenizer", config)


@pytest.fixture(scope="module")
def encoder(oracle_checkpoint: Path, config: TextEncoderConfig) -> TextEncoder:
    stored = load_file(oracle_checkpoint / "text_encoder/model.safetensors")
    with torch.device("meta"):
        ours = TextEncoder(config)
    entries = key_map(config, "diffusers").entries
    ours.load_state_dict({e.target: stored[e.sources[0]] for e in entries}, assign=True)
    ours.reset_buffers()
    return ours


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, oracle: Path) -> tuple[str, Arrays]:
    with np.load(oracle / f"{request.param}.npz") as arrays:
        return request.param, {name: arrays[name] for name in arrays.files if "step" not in name}


def references(arrays: Arrays) -> list[Shown]:
    """The prepared references in request order, as the pipeline hands them over."""
    shown: list[Shown] = []
    for number in range(MOST_REFERENCES):
        prefix = f"prepared_ref{number}_"
        if prefix + "pixels" in arrays:
            shown.append(ShownImage(arrays[prefix + "pixels"]))
        elif prefix + "frames" in arrays:
            shown.append(ShownVideo(arrays[prefix + "frames"], prefix + "wave" in arrays))
        elif prefix + "wave" in arrays:
            shown.append(ShownAudio())
    return shown


@pytest.fixture(scope="module")
def shown(case: tuple[str, Arrays], tokenizer: Tokenizer) -> BuiltPrompt:
    name, arrays = case
    names = sorted(key for key in arrays if key.startswith("prepared_keyframe"))
    return present(
        name.split("_")[0],
        str(arrays["prompt"]),
        tokenizer,
        keyframes=[ShownImage(arrays[key]) for key in names],
        references=references(arrays),
    )


def same(ours: torch.Tensor | None, arrays: Arrays, key: str) -> bool:
    if ours is None or key not in arrays:
        return ours is None and key not in arrays
    return torch.equal(ours, torch.from_numpy(arrays[key]))


def test_presentation(case: tuple[str, Arrays], shown: BuiltPrompt) -> None:
    """Everything that goes into the encoder, to the bit."""
    _, arrays = case
    inputs = shown.inputs
    positions = mrope_positions(inputs.token_types, inputs.image_grids, inputs.video_grids)
    for ours, key in (
        (inputs.token_ids, "token_ids"),
        (inputs.token_types, "token_types"),
        (shown.tags, "text_token_tags"),
        (positions, "mrope_positions"),
        (inputs.image_patches, "encoder_pixel_values"),
        (inputs.image_grids, "encoder_image_grid_thw"),
        (inputs.video_patches, "encoder_pixel_values_videos"),
        (inputs.video_grids, "encoder_video_grid_thw"),
    ):
        assert same(ours, arrays, key), key


def test_states(case: tuple[str, Arrays], shown: BuiltPrompt, encoder: TextEncoder) -> None:
    expected = torch.from_numpy(case[1]["text_states"])
    difference = (encoder.encode(shown.inputs) - expected).abs().max()
    assert difference <= 1e-5 * expected.abs().max()
