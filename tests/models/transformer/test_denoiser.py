import json
from fnmatch import fnmatch

import pytest
import torch

from h3serve.models.key_map import Layout
from h3serve.models.transformer.denoiser import Denoiser, key_map, param_dtype, to_compute_dtype
from h3serve.models.transformer.transformer_config import TransformerConfig
from tests.models.tiny_transformer import TINY, tiny_denoiser
from tests.paths import official

LAYOUTS: tuple[Layout, ...] = ("original", "diffusers")
INDEXES = {
    "original": ("FL2VA/transformer/model.safetensors.index.json", 535),
    "diffusers": ("transformer/diffusion_pytorch_model.safetensors.index.json", 638),
}


@pytest.fixture(scope="module")
def released() -> Denoiser:
    with torch.device("meta"):
        return Denoiser(TransformerConfig())


def test_size_of_the_released_model(released: Denoiser) -> None:
    sizes = {name: value.numel() for name, value in released.named_parameters()}
    dtypes = {name: param_dtype(name, torch.bfloat16) for name in sizes}
    assert sum(sizes.values()) == 33_122_992_896
    assert sum(n for name, n in sizes.items() if dtypes[name] == torch.float32) == 17_222_144
    assert sum(n * dtypes[name].itemsize for name, n in sizes.items()) == 66_280_430_080
    modulation = sum(n for name, n in sizes.items() if name.startswith("modulation."))
    assert modulation == 13_010_457_600 + 28_912_128 + 15_835_008


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", [TransformerConfig(), TINY], ids=["released", "tiny"])
def test_every_parameter_has_one_source(layout: Layout, config: TransformerConfig) -> None:
    with torch.device("meta"):
        names = sorted(Denoiser(config).state_dict())
    assert sorted(entry.target for entry in key_map(config, layout).entries) == names


@pytest.mark.parametrize("layout", LAYOUTS)
def test_release_names_are_covered_exactly(layout: Layout) -> None:
    path, count = INDEXES[layout]
    published = set(json.loads((official() / path).read_text())["weight_map"])
    keys = key_map(TransformerConfig(), layout)
    sources = [source for entry in keys.entries for source in entry.sources]
    unused = {name for name in published if any(fnmatch(name, p) for p in keys.unused)}
    assert len(published) == count
    assert len(sources) == len(set(sources))
    assert set(sources) | unused == published
    assert unused == ({"rope.inv_freq"} if layout == "original" else set())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_written_is_read_back(layout: Layout) -> None:
    state = tiny_denoiser().state_dict()
    for entry in key_map(TINY, layout).entries:
        ours = state[entry.target]
        assert (entry.reorder is None) == (entry.restore is None)
        if entry.reorder and entry.restore:
            assert torch.equal(entry.reorder(entry.restore(ours)), ours)
            assert not torch.equal(entry.restore(ours), ours)


def test_orders_of_the_original_layout() -> None:
    """Rows 384j.. of head j are q, k, v of 128 rows each; ours are all q, all k, all v."""
    entries = {entry.target: entry for entry in key_map(TINY, "original").entries}
    entry = entries["transformer.blocks.0.attn.qkv_proj.weight"]
    assert entry.reorder is not None
    rows = entry.reorder(torch.arange(3 * 384)[:, None])[:, 0].view(3, 3, 128)
    for part in range(3):
        for head in range(3):
            assert rows[part, head, 0] == 384 * head + 128 * part
    assert entries["transformer.blocks.0.mlp.fc1.weight"].reorder is None


def test_casting_spares_the_islands() -> None:
    denoiser = to_compute_dtype(tiny_denoiser(), torch.bfloat16)
    kept = {n for n, p in denoiser.named_parameters() if p.dtype == torch.float32}
    modules = {name.rsplit(".", 1)[0] for name in kept}
    assert modules == {
        "transformer.video_patch_proj",
        "transformer.audio_patch_proj",
        "transformer.final_layer.video_out",
        "transformer.final_layer.audio_out",
        "modulation.time_embedder.proj_in",
        "modulation.time_embedder.proj_out",
    }
    others = {p.dtype for n, p in denoiser.named_parameters() if n not in kept}
    assert others == {torch.bfloat16}
