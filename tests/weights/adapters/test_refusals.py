"""What is refused, and how it is said: one sentence with file, tensor, what is there and what is needed."""

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from h3serve.core.errors import CheckpointError
from h3serve.weights.adapters import build_updates
from h3serve.weights.adapters.open_adapter import Adapter, open_adapter
from tests.weights.adapters.dialect_writer import (
    CONFIG,
    FFN,
    HIDDEN,
    TIME,
    in_diffusers_names,
    in_flat_names,
    in_native_names,
    random_factors,
    write,
)

FC2 = "blocks.0.mlp.fc2"
A, B = f"{FC2}.lora_A.weight", f"{FC2}.lora_B.weight"
Tensors = dict[str, torch.Tensor]


def good() -> Tensors:
    torch.manual_seed(0)
    return {A: torch.randn(2, FFN), B: torch.randn(HIDDEN, 2)}


def opened(path: Path, tensors: Tensors, header: dict[str, str] | None = None, **how: Any) -> Adapter:
    save_file(tensors, path / "a.safetensors", header)
    return open_adapter(path / "a.safetensors", CONFIG, **how)


BROKEN: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "no name matches (L01)": (lambda t: {f"unet.{n}": v for n, v in t.items()}, "none of its tensors belongs"),
    "one name does not": (
        lambda t: t | {"blocks.2.mlp.fc2.lora_A.weight": t[A].clone()},
        "1 of 3 .*blocks.2.mlp.fc2.lora_A",
    ),
    "many do not": (
        lambda t: t | {f"blocks.{n}.mlp.fc2.lora_A.weight": t[A].clone() for n in range(2, 9)},
        "7 of 9 .*and 4 more",
    ),
    "text encoder": (lambda t: t | {"lora_te_text_model.lora_down.weight": t[A].clone()}, "lora_te_text_model"),
    "half of a pair": (lambda t: {A: t[A]}, "lora_A.weight is there, but not its other half: b of"),
    "the other half": (lambda t: {B: t[B]}, "lora_B.weight is there, but not its other half: a of"),
    "alpha alone": (lambda t: t | {"blocks.1.mlp.fc2.alpha": torch.ones(())}, "fc2.alpha belongs to nothing"),
    "magnitude alone": (lambda t: {f"{FC2}.dora_scale": torch.ones(HIDDEN)}, "dora_scale belongs to nothing"),
    "columns": (lambda t: t | {A: torch.ones(2, FFN + 1)}, r"fc2.lora_A.weight has shape \[2, 11\]; \[rank, 10\]"),
    "rows": (lambda t: t | {B: torch.ones(HIDDEN + 1, 2)}, r"lora_B.weight has shape \[13, 2\]; \[12, 2\] is needed"),
    "ranks that differ": (lambda t: t | {B: torch.ones(HIDDEN, 3)}, r"has shape \[12, 3\]; \[12, 2\] is needed"),
    "rank zero": (lambda t: {A: torch.ones(0, FFN), B: torch.ones(HIDDEN, 0)}, r"shape \[0, 10\]; at least one number"),
    "three axes": (lambda t: t | {A: torch.ones(2, FFN, 1)}, r"has shape \[2, 10, 1\]"),
    "NaN": (lambda t: t | {B: torch.full((HIDDEN, 2), torch.nan)}, "lora_B.weight holds numbers that are not finite"),
    "infinity": (lambda t: t | {A: torch.full((2, FFN), torch.inf)}, "lora_A.weight holds numbers that are not finite"),
    "NaN in alpha": (lambda t: t | {f"{FC2}.alpha": torch.tensor(torch.nan)}, "alpha holds numbers"),
    "whole numbers": (lambda t: t | {A: torch.ones(2, FFN, dtype=torch.int8)}, "stored as int8; floating-point"),
    "alpha of many numbers": (lambda t: t | {f"{FC2}.alpha": torch.ones(2)}, r"alpha has shape \[2\]; one number"),
    "magnitude of other rows": (lambda t: t | {f"{FC2}.dora_scale": torch.ones(5, 1)}, "dora_scale has shape"),
    "bias of a layer without": (lambda t: t | {f"{FC2}.diff_b": torch.ones(HIDDEN)}, "is for a bias, and .* has none"),
    "difference of another shape": (lambda t: {f"{FC2}.diff": torch.ones(2, 2)}, r"diff has shape \[2, 2\]"),
    "bare weight": (lambda t: {f"{FC2}.weight": torch.ones(HIDDEN, FFN)}, "an adapter's tensor, or a bank of heads"),
    "two slots": (
        lambda t: {n.replace(".weight", f".{s}.weight"): v.clone() for s in ("one", "two") for n, v in t.items()},
        "holds several adapters, one, two",
    ),
    "one layer twice": (
        lambda t: t | {f"{FC2}.lora_down.weight": t[A].clone(), f"{FC2}.lora_up.weight": t[B].clone()},
        "say the same of one layer",
    ),
    "two names of a layer": (
        lambda t: t | {n.replace(FC2, "transformer_blocks.0.ff.net.2"): v.clone() for n, v in t.items()},
        "changes transformer.blocks.0.mlp.fc2.weight twice",
    ),
    "pruned AdaLN": (
        lambda t: {
            "blocks.0.adaln_proj.linear.lora_A.weight": torch.ones(2, 4),
            "blocks.0.adaln_proj.linear.lora_B.weight": torch.ones(18 * HIDDEN, 2),
        },
        f"AdaLN is pruned to that width; .rank, {TIME}. is needed",
    ),
    "LoKr that makes another size": (
        lambda t: {f"{FC2}.lokr_w1": torch.ones(2, 2), f"{FC2}.lokr_w2": torch.ones(5, 5)},
        r"makes \[2, 2\] x \[5, 5\]; a product of \[12, 10\]",
    ),
    "LoKr with half a factor": (
        lambda t: {f"{FC2}.lokr_w1": torch.ones(2, 2), f"{FC2}.lokr_w2_a": torch.ones(6, 1)},
        "not its other half: lokr_w2_b",
    ),
    "LoHa with a part missing": (
        lambda t: {f"{FC2}.hada_w1_a": torch.ones(HIDDEN, 1), f"{FC2}.hada_w1_b": torch.ones(1, FFN)},
        "not its other half: hada_w2_a, hada_w2_b",
    ),
    "bank of another size": (
        lambda t: {"proj_out.weight": torch.ones(4, 95, HIDDEN)},
        "bank of heads .intervals, 96, 12",
    ),
}


@pytest.mark.parametrize("label", BROKEN)
def test_a_broken_file(label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that begins with the file; all but what only the numbers show is found without reading a tensor."""
    damage, sentence = BROKEN[label]
    if "NaN" not in label and label not in ("infinity", "two names of a layer"):
        monkeypatch.setattr(build_updates, "safe_open", None)
    with pytest.raises(CheckpointError, match=sentence) as caught:
        opened(tmp_path, damage(good()))
    assert str(caught.value).startswith(str(tmp_path / "a.safetensors")) and "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_one_number_that_is_none(dtype: torch.dtype, tmp_path: Path) -> None:
    """Wherever it is; factors of every floating dtype are read."""
    for name, row in ((A, 0), (A, 1), (B, HIDDEN - 1)):
        tensors = {n: value.to(dtype) for n, value in good().items()}
        assert opened(tmp_path, tensors).layers == 1
        tensors[name].view(-1)[row * tensors[name].shape[1]] = torch.nan
        with pytest.raises(CheckpointError, match=f"{name} holds numbers that are not finite"):
            opened(tmp_path, tensors)


def test_files_that_are_no_adapters(tmp_path: Path) -> None:
    cases = {
        "empty.safetensors": (b"", "cut off"),
        "text.safetensors": (b"hello there, this is no tensor file", "cut off|not a safetensors"),
        "huge.safetensors": (struct.pack("<Q", 2**60) + b"{}", "cut off"),
        "list.safetensors": (struct.pack("<Q", 2) + b"[]", "JSON object"),
        "none.safetensors": (struct.pack("<Q", 2) + b"{}", "holds no tensors"),
        "deep.safetensors": (struct.pack("<Q", 200_000) + b"[" * 200_000, "does not parse"),
    }
    for name, (data, sentence) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CheckpointError, match=sentence):
            open_adapter(tmp_path / name, CONFIG)
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_adapter(tmp_path / "absent.safetensors", CONFIG)
    with pytest.raises(CheckpointError, match="is a folder"):
        open_adapter(tmp_path, CONFIG)


@pytest.mark.parametrize("name", ["a\nb.lora_A.weight", "x" * 5000, ""])
def test_names_that_nobody_can_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a name of a tensor") as caught:
        opened(tmp_path, good() | {name: torch.ones(1)})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_header_that_lies(tmp_path: Path) -> None:
    save_file(good(), tmp_path / "a.safetensors")
    data = (tmp_path / "a.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for change, sentence in (
        ({"dtype": "F128"}, "unknown dtype 'F128'"),
        ({"shape": [2**40, FFN]}, "which is not"),
        ({"shape": [2**63, 2**63]}, "which is not"),
        ({"data_offsets": [0, 2**40]}, "which is not"),
        ({"shape": [-1, FFN]}, "damaged"),
    ):
        other = json.dumps(header | {A: header[A] | change}).encode()
        (tmp_path / "b.safetensors").write_bytes(struct.pack("<Q", len(other)) + other + data[8 + length :])
        with pytest.raises(CheckpointError, match=sentence):
            open_adapter(tmp_path / "b.safetensors", CONFIG)
    (tmp_path / "a.safetensors").write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match="is cut off"):
        open_adapter(tmp_path / "a.safetensors", CONFIG)


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ({"lora_adapter_metadata": "{"}, "lora_adapter_metadata is not a JSON object"),
        ({"lora_adapter_metadata": '{"transformer.lora_alpha": "x"}'}, "lora_alpha is 'x', not a number"),
        ({"lora_adapter_metadata": '{"transformer.lora_alpha": 1, "transformer.bias": "all"}'}, "bias is 'all'"),
        ({"alpha": "eight"}, "alpha is 'eight', not a number"),
        ({"alpha": "nan"}, "alpha is 'nan', not a number"),
        ({"lora_rank": "0"}, "lora_rank is '0', not a number"),
        ({"qkv_layout": "sideways"}, "qkv_layout is 'sideways'"),
    ],
)
def test_a_header_that_says_nonsense(header: dict[str, str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        opened(tmp_path, good(), header)


def test_row_order_of_a_file_without_fused_layers(tmp_path: Path) -> None:
    """Nothing is accepted and then ignored."""
    file = write(tmp_path / "a.safetensors", in_diffusers_names(random_factors()))
    with pytest.raises(CheckpointError, match="no layer of q, k and v in one"):
        open_adapter(file, CONFIG, qkv_layout="stacked")


# Alpha.


def scale_of(adapter: Adapter) -> tuple[float, float, str]:
    ((scale, _),) = adapter.scales.items()
    return scale.value, scale.alpha, scale.source


def test_alpha_in_its_order(tmp_path: Path) -> None:
    """The caller, the layer, the file beside, the header's configuration, the header's number; then alpha = rank."""
    factors = random_factors((FC2,), rank=4)
    names = in_diffusers_names(factors)
    header = {"lora_adapter_metadata": '{"transformer.lora_alpha": 12}', "lora_alpha": "16"}
    file = tmp_path / "style.safetensors"
    write(file, names)
    assert scale_of(open_adapter(file, CONFIG)) == (1.0, 4.0, "nowhere: alpha = rank")
    write(file, names, header={"network_alpha": "2.5"})
    assert scale_of(open_adapter(file, CONFIG)) == (0.625, 2.5, "the header's network_alpha")
    write(file, names, header=header)
    assert scale_of(open_adapter(file, CONFIG)) == (3.0, 12.0, "the header's lora_adapter_metadata")
    (tmp_path / "adapter_config.json").write_text('{"lora_alpha": 8, "use_rslora": true}')
    assert scale_of(open_adapter(file, CONFIG)) == (4.0, 8.0, "adapter_config.json")
    write(file, names, header=header, alpha=2.0)
    assert scale_of(open_adapter(file, CONFIG)) == (0.5, 2.0, "the layer's own")
    assert scale_of(open_adapter(file, CONFIG, alpha=6.0)) == (1.5, 6.0, "given by the caller")


def test_the_known_file_without_alpha(tmp_path: Path) -> None:
    """L05: 4 evaluations v0.1 needs alpha 8 at rank 128; alpha = rank is 16 times too strong."""
    factors = random_factors((FC2, "blocks.0.attn.qkv_proj"), rank=128)
    names = in_diffusers_names(factors)
    file = write(tmp_path / "minimax_h3_fl2v_turbo_4step_v0.1.safetensors", names, suffix="default")
    adapter = open_adapter(file, CONFIG)
    assert scale_of(adapter)[:2] == (8 / 128, 8.0) and adapter.warnings == ()
    for stem, alpha in (("fl2v_turbo_4step_v1.1_768p", 128.0), ("ref2v_turbo_8step_v1.0_768p_bf16", 8.0)):
        file = write(tmp_path / f"minimax_h3_{stem}.safetensors", names)
        assert scale_of(open_adapter(file, CONFIG))[1] == alpha
    other = write(tmp_path / "my_turbo_4step.safetensors", names)
    (warning,) = open_adapter(other, CONFIG).warnings
    assert "says nothing of alpha" in warning and open_adapter(other, CONFIG, alpha=8.0).warnings == ()


# Partition, base, doubts.


def test_the_other_partition(tmp_path: Path) -> None:
    """L32: refused where it is declared, a warning where only the file's name says so."""
    names = in_diffusers_names(random_factors((FC2,)))
    told: list[dict[str, Any]] = [
        {"prefix": "transformer_ref."},
        {"header": {"tasks": "ref2va"}},
        {"header": {"base_model": "MiniMaxAI/MiniMax-H3 Ref2VA"}},
    ]
    for how in told:
        file = write(tmp_path / "style.safetensors", names, **how)
        with pytest.raises(CheckpointError, match="is an adapter for ref2va .* the base is fl2va"):
            open_adapter(file, CONFIG, partition="fl2va")
        assert open_adapter(file, CONFIG, partition="ref2va").partition == "ref2va"
    known = write(tmp_path / "minimax_h3_ref2v_turbo_4step_v0.1.safetensors", names)
    with pytest.raises(CheckpointError, match="is an adapter for ref2va"):
        open_adapter(known, CONFIG, partition="fl2va")
    hint = write(tmp_path / "glow_ref2v.safetensors", names)
    assert "may be meant for ref2va" in open_adapter(hint, CONFIG, partition="fl2va").warnings[0]
    both = write(tmp_path / "style.safetensors", names, header={"tasks": "t2va,fl2va,ref2va"})
    assert open_adapter(both, CONFIG, partition="fl2va").partition is None


def test_the_base_that_it_was_trained_on(tmp_path: Path) -> None:
    """L38."""
    header = {"ss_sd_model_name": "minimax_h3_fl2va_pruned_int8_convrot.safetensors"}
    names = in_flat_names(random_factors((FC2,)))
    adapter = open_adapter(
        write(tmp_path / "a.safetensors", names, prefix="lora_unet_", suffix="down", header=header), CONFIG
    )
    assert "pruned_int8" in (adapter.trained_on or "") and "not the full one (pruned, int8)" in adapter.warnings[0]


def test_factors_of_zero(tmp_path: Path) -> None:
    """L19: an adapter that shipped as it was before training."""
    tensors = good()
    tensors[B].zero_()
    (warning,) = opened(tmp_path, tensors).warnings
    assert "changes nothing: factors are all zero" in warning


def test_rows_that_look_otherwise_only_warn(tmp_path: Path) -> None:
    """Statistics never choose: the declared order stands."""
    heads, width = 16, 8
    config = replace(CONFIG, num_attention_heads=heads, attention_head_dim=width)
    rng = np.random.default_rng(0)
    size = np.repeat([1.0, 4.0, 0.2], heads * width)[:, None]  # q, k and v rows of differing size, stacked
    b = (rng.standard_normal((3 * heads * width, 64)) * size).astype(np.float32)
    module = {"blocks.0.attn.qkv_proj": (rng.standard_normal((64, HIDDEN)).astype(np.float32), b)}
    file = write(tmp_path / "a.safetensors", module, suffix="default")
    wrong = open_adapter(file, config)
    assert wrong.qkv_rows == "interleaved (as DiffSynth writes it)"
    assert "if results are noise, give qkv_layout" in wrong.warnings[0]
    assert open_adapter(file, config, qkv_layout="stacked").warnings == ()


def test_the_summary_counts(tmp_path: Path) -> None:
    """L36."""
    adapter = open_adapter(
        write(tmp_path / "a.safetensors", in_native_names(random_factors((FC2,))), alpha=1.0), CONFIG
    )
    assert (adapter.layers, adapter.layers_there) == (1, 22) and scale_of(adapter) == (0.5, 1.0, "the layer's own")
