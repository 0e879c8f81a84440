"""How the tensors of adapter files are named, as data: prefixes, suffixes, and the dialects that use them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

QkvRows = Literal["stacked", "interleaved"]

# What the names of a whole file may begin with, the longest first. After a flat prefix, dots are underscores.
PREFIXES = (
    "peft_model.base_model.model.",
    "base_model.model.",
    "model.diffusion_model.",
    "diffusion_model.",
    "transformer_ref.",
    "transformer.",
    "model.",
)
FLAT_PREFIXES = ("lora_transformer_", "lora_unet_")

_SLOT = r"(?:\.(?P<slot>[^.]+))?"
# Role of a tensor -> how its name ends. The first that matches decides; `bank` and `bank_bias` are bare tensors.
ROLES = {
    "a": rf"\.(?:lora_A|lora_down|lora\.down|lora\.A){_SLOT}\.weight|\.lora_(?:down|a)",
    "b": rf"\.(?:lora_B|lora_up|lora\.up|lora\.B){_SLOT}\.weight|\.lora_(?:up|b)",
    "alpha": r"\.alpha",
    "magnitude": rf"\.dora_scale|\.lora_magnitude_vector{_SLOT}\.weight|\.lora_magnitude_vector|\.magnitude",
    "lokr_w1": r"\.lokr_w1",
    "lokr_w1_a": r"\.lokr_w1_a",
    "lokr_w1_b": r"\.lokr_w1_b",
    "lokr_w2": r"\.lokr_w2",
    "lokr_w2_a": r"\.lokr_w2_a",
    "lokr_w2_b": r"\.lokr_w2_b",
    "hada_w1_a": r"\.hada_w1_a",
    "hada_w1_b": r"\.hada_w1_b",
    "hada_w2_a": r"\.hada_w2_a",
    "hada_w2_b": r"\.hada_w2_b",
    "diff": r"\.diff",
    "diff_b": r"\.diff_b",
    "set_weight": r"\.set_weight",
    "set_bias": r"\.set_bias",
    "bank": r"\.weight",
    "bank_bias": r"\.bias",
}
_ENDINGS = [(role, re.compile(f"(?P<layer>.+?)(?:{ending})")) for role, ending in ROLES.items()]


@dataclass(frozen=True)
class TensorName:
    """A tensor's name taken apart."""

    layer: str  # as the file spells it, without prefix
    role: str
    slot: str | None


def taken_apart(name: str) -> TensorName | None:
    """Layer, role and slot of a tensor whose prefix is off; None if no adapter names one so."""
    for role, ending in _ENDINGS:
        if found := ending.fullmatch(name):
            return TensorName(found["layer"], role, found.groupdict().get("slot"))
    return None


def common_prefix(names: Collection[str]) -> str:
    """What all names begin with, of the prefixes known, one after another."""
    prefix = ""
    while names and (more := next((p for p in PREFIXES if all(n.startswith(prefix + p) for n in names)), "")):
        prefix += more
    flat = next((p for p in FLAT_PREFIXES if all(n.startswith(prefix + p) for n in names)), "")
    return prefix + flat


@dataclass(frozen=True)
class Dialect:
    """How one family of programs writes adapters, and what that says where the file says nothing."""

    name: str
    prefix: str | None = None  # regular expression that the file's prefix matches whole
    tensors: str = ""  # regular expression found in the name of some tensor
    header: Mapping[str, str] | None = None  # key of the header -> regular expression of its value
    qkv_rows: QkvRows = "stacked"  # of B, where q, k and v are one layer
    sidecar: str | None = None  # file beside it that holds alpha

    def fits(self, prefix: str, names: Collection[str], header: Mapping[str, str]) -> bool:
        """Whether a file is of this dialect."""
        wanted = self.header or {}
        told = all(key in header and re.fullmatch(value, header[key], re.DOTALL) for key, value in wanted.items())
        return (
            told
            and (self.prefix is None or re.fullmatch(self.prefix, prefix) is not None)
            and (not self.tensors or any(re.search(self.tensors, name) for name in names))
        )


_BLOCK = r"^(transformer_blocks|token_refiner\.refiner_blocks)\."  # as diffusers names blocks
PEFT_CONFIG = "adapter_config.json"
# The first that fits is taken. `.*` of a header's value: the key is there, whatever it says.
DIALECTS = (
    Dialect("FlashGen", header={"key_format": "minimax-h3-native"}, qkv_rows="interleaved"),
    Dialect(
        "FlashGen", prefix=r"transformer\.", tensors=r"^blocks\.\d+\..*\.lora_A\.[^.]+\.weight$", qkv_rows="interleaved"
    ),
    Dialect("HyperFlow", header={"hyperflow": ".*"}),
    Dialect("FastH3", header={"format": "fastvideo-lora-v2"}),
    Dialect("PDD", header={"pdd_num_steps": ".*"}),
    Dialect("PDD", tensors=r"\.lora_down$"),
    Dialect("TaoMate", tensors=r"\.lora_a$", sidecar="config.json"),
    Dialect("kohya / musubi", prefix=r".*lora_(unet|transformer)_"),
    Dialect("diffusers", prefix=r"transformer(_ref)?\.", tensors=_BLOCK, sidecar=PEFT_CONFIG),
    Dialect("PEFT", tensors=_BLOCK, sidecar=PEFT_CONFIG),
    Dialect("PEFT", prefix=r"(peft_model\.)?base_model\.model\..*", sidecar=PEFT_CONFIG),
    Dialect("DiffSynth", prefix="", tensors=r"\.lora_[AB]\.[^.]+\.weight$", qkv_rows="interleaved"),
    Dialect("ai-toolkit", header={"software": ".*ai-toolkit.*"}),
    Dialect("ai-toolkit DoRA", tensors=r"\.magnitude$"),
    Dialect("ComfyUI native"),
)


def dialect_of(prefix: str, names: Collection[str], header: Mapping[str, str]) -> Dialect:
    """The dialect of a file, by its prefix, its tensors' names without it, and its header."""
    return next(dialect for dialect in DIALECTS if dialect.fits(prefix, names, header))
