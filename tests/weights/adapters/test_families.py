"""LoHa, LoKr and DoRA beside the programs that train them; whole tensors, banks of heads, layers the base lacks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lycoris.modules.loha import LohaModule
from lycoris.modules.lokr import LokrModule
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch import nn

from h3serve.core.errors import CheckpointError
from h3serve.weights.adapters.open_adapter import open_adapter
from h3serve.weights.adapters.updates import Difference, DoRA, HeadBank, LowRank, Replacement, Update
from tests.weights.adapters.dialect_writer import CONFIG, FFN, HIDDEN, INNER, interleaved, up_gate

FC1, QKV = "blocks.0.mlp.fc1", "blocks.0.attn.qkv_proj"
ROWS = {FC1: 2 * FFN, QKV: 3 * INNER}


def _randomized(module: nn.Module, seed: int) -> None:
    """LyCORIS starts from a delta of zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.named_parameters():
        if "org" not in name and not name.endswith(("weight", "bias")):
            value.data = torch.randn(value.shape, generator=generator)


LYCORIS: dict[str, tuple[Any, dict[str, Any]]] = {
    "LoHa": (LohaModule, {"lora_dim": 2, "alpha": 1.0}),
    "LoHa, rank-stabilized": (LohaModule, {"lora_dim": 4, "alpha": 3.0, "rs_lora": True}),
    "LoHa, DoRA": (LohaModule, {"lora_dim": 2, "alpha": 1.0, "weight_decompose": True}),
    "LoKr, one factor whole": (LokrModule, {"lora_dim": 1, "alpha": 3.0, "factor": 2}),
    "LoKr, both factored": (LokrModule, {"lora_dim": 1, "alpha": 4.0, "factor": 4, "decompose_both": True}),
    "LoKr, both whole": (LokrModule, {"lora_dim": 10000, "alpha": 1e10, "factor": 2, "full_matrix": True}),
    "LoKr, DoRA": (LokrModule, {"lora_dim": 1, "alpha": 2.0, "factor": 2, "weight_decompose": True}),
    "LoKr, DoRA by column": (
        LokrModule,
        {"lora_dim": 1, "alpha": 2.0, "factor": 2, "weight_decompose": True, "wd_on_out": False},
    ),
}


@pytest.mark.parametrize("rows", ["stacked", "interleaved"])
@pytest.mark.parametrize("native", ROWS)
@pytest.mark.parametrize("kind", LYCORIS)
def test_beside_lycoris(kind: str, native: str, rows: str, tmp_path: Path) -> None:
    """A module of LyCORIS saves itself, and the weight it computes with is base + our delta.

    Taken from its forward pass: `get_merged_weight` of 4.1.3 multiplies by alpha / rank twice.
    """
    if rows == "interleaved" and native == FC1:
        rows = "stacked"
    torch.manual_seed(0)
    linear = nn.Linear(HIDDEN, ROWS[native], bias=False)
    base = linear.weight.detach().clone()
    made, how = LYCORIS[kind]
    module = made("lora", linear, multiplier=1.0, **how)
    _randomized(module, seed=5)
    stored = {f"{native}.{name}": value.contiguous() for name, value in module.state_dict().items()}
    assert any("_w1" in name for name in stored)
    save_file(stored, tmp_path / "a.safetensors")
    module.apply_to()
    merged = linear(torch.eye(HIDDEN)).detach().T
    layout: Any = rows if native == QKV else None
    (update,) = open_adapter(tmp_path / "a.safetensors", CONFIG, qkv_layout=layout).updates
    assert isinstance(update, DoRA) == ("DoRA" in kind)
    if rows == "interleaved":  # the trainer's base had its rows so, too: ours is what it looks like in our order
        ours = torch.empty_like(base)
        place = torch.from_numpy(interleaved(np.arange(len(base))))
        ours[place], expected = base, torch.empty_like(base)
        expected[place] = merged
    else:
        ours, expected = base, merged
    torch.testing.assert_close(ours + update.delta(ours), expected, atol=2e-5, rtol=1e-4)


class TinyBlock(nn.Module):
    """One block by diffusers' names, so that PEFT names what it saves as it does for the real one."""

    def __init__(self) -> None:
        super().__init__()
        attention, mlp = nn.Module(), nn.Module()
        for letter in "qkv":
            setattr(attention, f"to_{letter}", nn.Linear(HIDDEN, INNER, bias=False))
        attention.to_out = nn.ModuleList([nn.Linear(INNER, HIDDEN, bias=False)])
        gate = nn.Module()
        gate.proj = nn.Linear(HIDDEN, 2 * FFN, bias=False)
        mlp.net = nn.ModuleList([gate, nn.Identity(), nn.Linear(FFN, HIDDEN, bias=False)])
        self.attn, self.ff = attention, mlp


class TinyModel(nn.Module):
    """Two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer_blocks = nn.ModuleList([TinyBlock(), TinyBlock()])


def _our_rows(state: dict[str, torch.Tensor], target: str) -> torch.Tensor:
    """Our tensor from diffusers' ones, by the tables of the writer."""
    block = target.removeprefix("transformer.").split(".")[1]
    of = lambda name: state[f"transformer_blocks.{block}.{name}.weight"]  # noqa: E731
    if "qkv" in target:
        return torch.cat([of(f"attn.to_{letter}") for letter in "qkv"])
    if "fc1" in target:
        return torch.from_numpy(up_gate(of("ff.net.0.proj").numpy()))
    return of("attn.to_out.0" if "out_proj" in target else "ff.net.2")


PEFT: dict[str, dict[str, Any]] = {
    "LoRA": {"r": 2, "lora_alpha": 3},
    "rank-stabilized": {"r": 4, "lora_alpha": 3, "use_rslora": True},
    "DoRA": {"r": 2, "lora_alpha": 3, "use_dora": True},
    "patterns": {
        "r": 2,
        "lora_alpha": 3,
        "rank_pattern": {"to_q": 4, "transformer_blocks.1.attn.to_v": 1},
        "alpha_pattern": {"to_q": 10, r"ff\.net\.\d": 7},
    },
}


@pytest.mark.parametrize("kind", PEFT)
def test_beside_peft(kind: str, tmp_path: Path) -> None:
    """A model that PEFT wraps, saves and merges: `adapter_config.json` is read with its patterns."""
    torch.manual_seed(1)
    model = TinyModel()
    base = {name: value.clone() for name, value in model.state_dict().items()}
    targets = ["to_q", "to_k", "to_v", "to_out.0", "net.0.proj", "net.2"]
    wrapped = get_peft_model(model, LoraConfig(target_modules=targets, **PEFT[kind]))
    for name, value in wrapped.named_parameters():
        if "lora_" in name:
            value.data = torch.randn_like(value).abs() + 0.1
    wrapped.save_pretrained(tmp_path)
    merged = wrapped.merge_and_unload().state_dict()
    adapter = open_adapter(tmp_path / "adapter_model.safetensors", CONFIG)
    assert adapter.layers == 8 and adapter.dialect == "PEFT"
    assert {scale.source for scale in adapter.scales} == {"adapter_config.json"}
    targets_seen = {update.target for update in adapter.updates}
    for target in targets_seen:
        ours, expected = _our_rows(base, target), _our_rows(merged, target)
        found = ours.clone()
        for update in adapter.updates:
            if update.target == target:
                at = slice(update.first, update.first + update.rows)
                found[at] = ours[at] + update.delta(ours[at])
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def _one(tmp_path: Path, tensors: dict[str, torch.Tensor], header: dict[str, str] | None = None) -> tuple[Update, ...]:
    save_file(tensors, tmp_path / "a.safetensors", header)
    return open_adapter(tmp_path / "a.safetensors", CONFIG).updates


def test_dora_of_ai_toolkit(tmp_path: Path) -> None:
    """`.magnitude`, norm of the merged weight, computed here from the formula."""
    torch.manual_seed(2)
    a, b, m = torch.randn(2, HIDDEN), torch.randn(2 * FFN, 2), torch.rand(2 * FFN)
    name = f"diffusion_model.{FC1}"
    (update,) = _one(tmp_path, {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b, f"{name}.magnitude": m})
    base = torch.randn(2 * FFN, HIDDEN)
    v = base.double() + b.double() @ a.double()
    expected = m.double()[:, None] * v / v.square().sum(1, keepdim=True).sqrt()
    torch.testing.assert_close((base + update.delta(base)).double(), expected, atol=1e-5, rtol=1e-5)


def test_fasth3_differences_and_replacements(tmp_path: Path) -> None:
    value, bias, gate = torch.randn(2 * FFN, HIDDEN), torch.randn(96), torch.randn(INNER, HIDDEN)
    updates = _one(
        tmp_path,
        {
            "transformer_blocks.0.ff.net.0.proj.diff": value,
            "proj_out.diff_b": bias,
            "transformer_blocks.1.attn.to_gate_compress.set_weight": gate,
        },
        {"format": "fastvideo-lora-v2"},
    )
    difference, offset, replaced = sorted(updates, key=lambda u: ("gate" in u.target, u.target.endswith("bias")))
    assert isinstance(difference, Difference) and difference.target == "transformer.blocks.0.mlp.fc1.weight"
    assert torch.equal(difference.value, torch.cat([value[FFN:], value[:FFN]]))
    assert isinstance(offset, Difference) and offset.target == "transformer.final_layer.video_out.bias"
    assert isinstance(replaced, Replacement) and not replaced.strength_linear
    adapter = open_adapter(tmp_path / "a.safetensors", CONFIG)
    assert adapter.dialect == "FastH3" and adapter.needs == ("sparse attention with trained gates",)


def test_a_replacement_is_exact(tmp_path: Path) -> None:
    value, base = torch.randn(HIDDEN, FFN), torch.randn(HIDDEN, FFN)
    (update,) = _one(tmp_path, {"blocks.1.mlp.fc2.set_weight": value})
    torch.testing.assert_close(base + update.delta(base), value)


def test_banks_of_heads(tmp_path: Path) -> None:
    """L14: PDD's heads are required parts, not dropped; Comfy stacks a head and offsets from it."""
    torch.manual_seed(3)
    heads, bias = torch.randn(4, 96, HIDDEN), torch.randn(4, 96)
    plain = _one(tmp_path, {"proj_out.weight": heads, "proj_out.bias": bias}, {"pdd_num_steps": "4"})
    assert [type(update) for update in plain] == [HeadBank, HeadBank] and torch.equal(plain[0].value, heads)
    assert open_adapter(tmp_path / "a.safetensors", CONFIG).needs == (
        "an output head for every interval of its schedule",
    )
    offsets = torch.cat([heads[:1], heads[1:] - heads[:1]]).reshape(-1, HIDDEN)
    (stacked,) = _one(tmp_path, {"diffusion_model.final_layer.video_out.set_weight": offsets})
    assert isinstance(stacked, HeadBank) and stacked.target == "transformer.final_layer.video_out.weight"
    torch.testing.assert_close(stacked.value, heads)
    assert not stacked.mergeable


def test_hyperflow_has_an_embedder_of_its_own(tmp_path: Path) -> None:
    tensors = {
        "transformer.endpoint_time_embedder.linear_1.lora_A.weight": torch.randn(2, CONFIG.freq_dim),
        "transformer.endpoint_time_embedder.linear_1.lora_B.weight": torch.randn(HIDDEN, 2),
    }
    (update,) = _one(tmp_path, tensors, {"hyperflow": "1", "lora_alpha": "2"})
    assert isinstance(update, LowRank) and update.target == "modulation.endpoint_time_embedder.proj_in.weight"
    adapter = open_adapter(tmp_path / "a.safetensors", CONFIG)
    assert adapter.needs == ("two-time conditioning (an endpoint time embedder)",) and adapter.layers == 0


def test_a_shared_base_is_never_touched(tmp_path: Path) -> None:
    """L35: deltas are computed from the base, which keeps its bits."""
    torch.manual_seed(4)
    name = "blocks.0.mlp.fc2"
    tensors = {f"{name}.lora_A.weight": torch.randn(2, FFN), f"{name}.lora_B.weight": torch.randn(HIDDEN, 2)}
    (update,) = _one(tmp_path, tensors | {f"{name}.dora_scale": torch.rand(HIDDEN, 1)})
    base = torch.randn(HIDDEN, FFN)
    before = base.clone()
    update.delta(base)
    assert torch.equal(base, before)


def test_a_convolution_is_refused(tmp_path: Path) -> None:
    tensors = {f"{FC1}.lokr_w1": torch.ones(2, 2), f"{FC1}.lokr_t2": torch.ones(1, 1, 1, 1)}
    with pytest.raises(CheckpointError, match=r"1 of 2 tensors .*lokr_t2"):
        _one(tmp_path, tensors)
