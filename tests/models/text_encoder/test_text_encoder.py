"""The encoder against transformers' whole Qwen3-VL, and its names against the release's index."""

import json
from fnmatch import fnmatchcase

import pytest
import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from h3serve.core.errors import CheckpointError
from h3serve.models.text_encoder.text_encoder import (
    LAYERS,
    EncoderInput,
    TextEncoder,
    TextEncoderConfig,
    key_map,
    mrope_positions,
)
from tests.paths import official

IMAGE_PAD, VIDEO_PAD, START, END = 5, 6, 3, 4
TINY = {
    "model_type": "qwen3_vl",
    "image_token_id": IMAGE_PAD,
    "video_token_id": VIDEO_PAD,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_vl_text",
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": LAYERS + 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "dtype": "bfloat16",
        "rope_theta": 5_000_000,
        "rope_scaling": {
            "mrope_interleaved": True,
            "mrope_section": [4, 2, 2],
            "rope_type": "default",
        },
    },
    "vision_config": {
        "model_type": "qwen3_vl",
        "depth": 4,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 2,
        "out_hidden_size": 16,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 1, 2],
    },
}
CONFIG = TextEncoderConfig.from_dict(TINY)


def block(pad: int, count: int) -> list[int]:
    return [START, *[pad] * count, END]


def mixed() -> EncoderInput:
    """Two pictures (2 x 3 and 1 x 1 squares), then a clip of two blocks (2 x 1 squares)."""
    ids = [10, 11, *block(IMAGE_PAD, 6), 12, *block(IMAGE_PAD, 1), 13]
    ids += [*block(VIDEO_PAD, 2), 14, *block(VIDEO_PAD, 2), 15, 16]
    types = [{IMAGE_PAD: 1, VIDEO_PAD: 2}.get(number, 0) for number in ids]
    generator = torch.Generator().manual_seed(3)
    return EncoderInput(
        torch.tensor(ids),
        torch.tensor(types),
        torch.rand(28, 1536, generator=generator) * 2 - 1,
        torch.tensor([[1, 4, 6], [1, 2, 2]]),
        torch.rand(16, 1536, generator=generator) * 2 - 1,
        torch.tensor([[2, 4, 2]]),
    )


@pytest.fixture(scope="module")
def whole() -> Qwen3VLForConditionalGeneration:
    """transformers' model with every layer and the head, random weights."""
    config = json.loads(json.dumps(TINY))
    config["text_config"]["dtype"] = "float32"
    torch.manual_seed(1)
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_dict(config)).float().eval()
    for name, value in model.named_parameters():
        scale = 0.3 if value.ndim > 1 else 0.1
        value.data = torch.randn_like(value) * scale + (value.ndim == 1 and "weight" in name)
    return model


@pytest.fixture(scope="module")
def encoder(whole: Qwen3VLForConditionalGeneration) -> TextEncoder:
    """Ours, built without storage and filled through the key map as the loader does."""
    with torch.device("meta"):
        ours = TextEncoder(CONFIG)
    stored = whole.state_dict()
    entries = key_map(CONFIG, "diffusers").entries
    ours.load_state_dict({e.target: stored[e.sources[0]] for e in entries}, assign=True)
    ours.reset_buffers()
    return ours


def reference(whole: Qwen3VLForConditionalGeneration, inputs: EncoderInput) -> torch.Tensor:
    with torch.no_grad():
        output = whole.model(
            input_ids=inputs.token_ids[None],
            attention_mask=torch.ones_like(inputs.token_ids)[None],
            mm_token_type_ids=inputs.token_types[None],
            pixel_values=inputs.image_patches,
            image_grid_thw=inputs.image_grids,
            pixel_values_videos=inputs.video_patches,
            video_grid_thw=inputs.video_grids,
            use_cache=False,
            output_hidden_states=True,
        )
    return output.hidden_states[LAYERS][0]


def text_only() -> EncoderInput:
    return EncoderInput(torch.tensor([10, 20, 30, 11]), torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize("inputs", [text_only(), mixed()], ids=["text", "mixed"])
def test_states_are_hidden_states_50(whole, encoder: TextEncoder, inputs: EncoderInput) -> None:
    expected = reference(whole, inputs)
    states = encoder.encode(inputs)
    assert states.shape == (len(inputs.token_ids), CONFIG.width)
    assert (states - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert states.std() > 0.1


def test_deepstack_is_felt(encoder: TextEncoder) -> None:
    """With the taps silenced, the states from the first picture on change."""
    inputs, before = mixed(), encoder.encode(mixed())
    taps = [merger.linear_fc2 for merger in encoder.model.visual.deepstack_merger_list]
    kept = [(tap.weight.data, tap.bias.data) for tap in taps]
    for tap in taps:
        tap.weight.data, tap.bias.data = tap.weight.data * 0, tap.bias.data * 0
    try:
        change = (encoder.encode(inputs) - before).abs().amax(dim=1)
    finally:
        for tap, (weight, bias) in zip(taps, kept, strict=True):
            tap.weight.data, tap.bias.data = weight, bias
    assert (change[:3] == 0).all() and (change[3:] > 1e-3).all()


def test_a_later_token_changes_nothing_before_it(encoder: TextEncoder) -> None:
    inputs = text_only()
    shorter = EncoderInput(inputs.token_ids[:-1], inputs.token_types[:-1])
    assert torch.allclose(encoder.encode(inputs)[:-1], encoder.encode(shorter), atol=1e-5)


def test_a_second_request_is_not_touched_by_the_first(encoder: TextEncoder) -> None:
    alone = encoder.encode(text_only())
    encoder.encode(mixed())
    assert torch.equal(encoder.encode(text_only()), alone)


def test_rotary_tables_survive_a_meta_build_and_a_cast(encoder: TextEncoder) -> None:
    with torch.device("meta"):
        cast = TextEncoder(CONFIG)
    assert any(buffer.is_meta for buffer in cast.buffers())
    cast.to_empty(device="cpu").to(torch.bfloat16).reset_buffers()
    expected = 5_000_000 ** (-torch.arange(0, 16, 2) / 16)
    table = cast.model.language_model.rotary_emb.inv_freq
    assert table.dtype == torch.float32 and torch.allclose(table, expected)
    assert [n for n, _ in cast.named_buffers()] == [n for n, _ in encoder.named_buffers()]
    assert all(b.dtype == torch.float32 for b in cast.buffers())


def test_positions_equal_transformers(whole: Qwen3VLForConditionalGeneration) -> None:
    inputs = mixed()
    expected, _ = whole.model.get_rope_index(
        inputs.token_ids[None],
        inputs.token_types[None],
        image_grid_thw=inputs.image_grids,
        video_grid_thw=inputs.video_grids,
    )
    ours = mrope_positions(inputs.token_types, inputs.image_grids, inputs.video_grids)
    assert torch.equal(ours, expected[:, 0])
    assert ours[:, 3:9].tolist() == [[3] * 6, [3, 3, 3, 4, 4, 4], [3, 4, 5, 3, 4, 5]]
    assert ours[:, 9].tolist() == [6, 6, 6]


def test_the_state_dict_is_what_the_key_map_fills() -> None:
    with torch.device("meta"):
        ours = TextEncoder(CONFIG)
    names = [entry.target for entry in key_map(CONFIG, "original").entries]
    assert len(names) == len(set(names)) and set(names) == set(ours.state_dict())


def test_names_of_the_release() -> None:
    folder = official() / "FL2VA" / "text_encoder"
    config = TextEncoderConfig.from_dict(json.loads((folder / "config.json").read_text()))
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    keys = key_map(config, "original")
    used = {source for entry in keys.entries for source in entry.sources}
    left = set(index) - used
    assert len(index) == 1058 and used <= set(index)
    assert all(any(fnmatchcase(name, pattern) for pattern in keys.unused) for name in left)
    assert not any(fnmatchcase(name, pattern) for pattern in keys.unused for name in used)
    assert len(left) == 2 + 14 * 11
    with torch.device("meta"):
        ours = TextEncoder(config)
    assert set(ours.state_dict()) == used
    assert config.width == 5120


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "qwen2_vl"}, "qwen3_vl"),
        ({"text_config": TINY["text_config"] | {"num_hidden_layers": 36}}, "36 decoder layers"),
    ],
)
def test_another_encoder_is_refused(change: dict, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        TextEncoderConfig.from_dict(TINY | change)
