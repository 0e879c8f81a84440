"""Tensor parallelism: every rank holds a slice of each large linear and loads only that from the files.

A pair of linears is sharded so that one sum over the group closes it: the first one by its outputs (whole heads, or
gate and up alike), the second one by its inputs. The networks are unaware; their modules are exchanged before
the weights come.
"""

from __future__ import annotations

from torch import Tensor, nn

from h3serve.core.errors import RequestError
from h3serve.models.text_encoder.text_encoder import TextEncoder
from h3serve.models.transformer.blocks import MLP, SelfAttention
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.runtime.parallel.process_group import ProcessGroup
from h3serve.weights.formats.entry_rows import Part, PartOf, Shard


class SummedLinear(nn.Linear):
    """A linear of which this rank has some inputs: the group's results are added up."""

    group: ProcessGroup

    def forward(self, x: Tensor) -> Tensor:
        """x [..., own inputs] -> [..., outputs]."""
        return self.group.all_reduce(super().forward(x))


def shard_denoiser(group: ProcessGroup) -> Shard:
    """Attention by heads and MLPs by channels. Modulation is another affair: its tables are the same everywhere."""

    def shard(denoiser: nn.Module) -> PartOf:
        assert isinstance(denoiser, Denoiser)
        check_division(denoiser.config.num_attention_heads, "attention heads", group.size)
        check_division(denoiser.config.ffn_dim, "MLP channels", group.size)
        sharder = _Sharder(group)
        for name, module in list(denoiser.named_modules()):
            if isinstance(module, SelfAttention):
                module.heads //= group.size
                sharder.outputs(module, name, "qkv_proj", groups=3)
                sharder.inputs(module, name, "out_proj")
            elif isinstance(module, MLP):
                sharder.outputs(module, name, "fc1", groups=2)
                sharder.inputs(module, name, "fc2")
        return sharder.parts.get

    return shard


def shard_text_encoder(group: ProcessGroup) -> Shard:
    """The language model's attention by key-value heads and its MLPs by channels; the rest stays whole."""

    def shard(encoder: nn.Module) -> PartOf:
        assert isinstance(encoder, TextEncoder)
        check_division(encoder.config.kv_heads, "key-value heads", group.size, field="text_encoder")
        sharder = _Sharder(group)
        for name, module in list(encoder.named_modules()):
            children = dict(module.named_children())
            if "k_proj" in children:
                for child in ("q_proj", "k_proj", "v_proj"):
                    sharder.outputs(module, name, child)
                sharder.inputs(module, name, "o_proj")
            elif "up_proj" in children:
                for child in ("gate_proj", "up_proj"):
                    sharder.outputs(module, name, child)
                sharder.inputs(module, name, "down_proj")
        return sharder.parts.get

    return shard


def check_division(length: int, what: str, parts: int, *, field: str = "tp") -> None:
    """RequestError unless every rank can get the same share."""
    if length % parts:
        raise RequestError(field, parts, f"{length} {what} cannot be divided by it")


class _Sharder:
    """Exchanges linears for smaller ones and notes which part of each tensor is left."""

    def __init__(self, group: ProcessGroup) -> None:
        assert group.index is not None
        self.group = group
        self.parts: dict[str, Part] = {}

    def outputs(self, owner: nn.Module, path: str, child: str, *, groups: int = 1) -> None:
        """Keep this rank's outputs of `owner.child`, of each of `groups`."""
        linear = getattr(owner, child)
        part = Part(0, self.group.index, self.group.size, groups)
        self._replace(owner, child, nn.Linear, (linear.in_features, linear.out_features // self.group.size))
        self.parts[f"{path}.{child}.weight"] = part
        if linear.bias is not None:
            self.parts[f"{path}.{child}.bias"] = part

    def inputs(self, owner: nn.Module, path: str, child: str) -> None:
        """Keep this rank's inputs of `owner.child`; a bias would be added once per rank."""
        linear = getattr(owner, child)
        assert linear.bias is None
        self._replace(owner, child, SummedLinear, (linear.in_features // self.group.size, linear.out_features))
        self.parts[f"{path}.{child}.weight"] = Part(1, self.group.index, self.group.size)

    def _replace(self, owner: nn.Module, child: str, kind: type[nn.Linear], sizes: tuple[int, int]) -> None:
        old = getattr(owner, child)
        new = kind(*sizes, bias=old.bias is not None, device=old.weight.device, dtype=old.weight.dtype)
        if isinstance(new, SummedLinear):
            new.group = self.group
        setattr(owner, child, new.eval().requires_grad_(False))


def part_of_state(module: nn.Module, part_of: PartOf, state: dict[str, Tensor], *, strict: bool = True) -> None:
    """Fills a sharded module from whole tensors in memory; all of it, if `strict`."""
    own = {}
    for name, value in state.items():
        part = part_of(name)
        if part is not None:
            value = value.index_select(part.axis, part.positions(value.shape[part.axis]).to(value.device))
        own[name] = value
    module.load_state_dict(own, assign=True, strict=strict)
