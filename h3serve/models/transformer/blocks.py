"""The transformer's blocks, without modulation weights (spec/transformer.md 2.2, 2.5, 2.6)."""

from __future__ import annotations

import torch
from torch import nn

from h3serve.models.kernels.attention import Attention, sdpa
from h3serve.models.kernels.elementwise import PLAIN, LinearInput, Ops, Rope, norm_modulate
from h3serve.models.transformer.transformer_config import TransformerConfig


class SelfAttention(nn.Module):
    """Multi-head attention among all rows, with an RMSNorm on each head of q and k; no biases."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.num_attention_heads, config.attention_head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.inner_dim, bias=False)  # [q; k; v]
        self.q_norm = nn.RMSNorm(self.head_dim, config.qk_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, config.qk_norm_eps)
        self.out_proj = nn.Linear(config.inner_dim, config.hidden_size, bias=False)

    def forward(self, x: LinearInput, *, rope: Rope | None, attention: Attention, ops: Ops) -> torch.Tensor:
        """x [S, hidden] -> [S, hidden]."""
        qkv = self.qkv_proj(x).unflatten(-1, (3, self.heads, self.head_dim))
        q, k, v = ops.qk_norm_rope(qkv, self.q_norm, self.k_norm, rope)
        return self.out_proj(attention(q, k, v).flatten(1))


class MLP(nn.Module):
    """SwiGLU without biases."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, 2 * config.ffn_dim, bias=False)  # [gate; up]
        self.fc2 = nn.Linear(config.ffn_dim, config.hidden_size, bias=False)

    def forward(self, x: LinearInput, *, ops: Ops) -> torch.Tensor:
        """x [S, hidden] -> [S, hidden]."""
        return self.fc2(ops.gated_linear(x, self.fc1))


class Core(nn.Module):
    """What the main blocks and the refiner's have in common: two norms, attention and MLP."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.attn = SelfAttention(config)
        self.norm2 = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config)


class Block(Core):
    """A main block; shifts, scales and gates are handed in, a set per timestep and modality."""

    def forward(
        self,
        x: torch.Tensor,
        table: torch.Tensor,
        *,
        index: torch.Tensor,
        rope: Rope,
        attention: Attention,
        ops: Ops,
    ) -> torch.Tensor:
        """x [S, hidden]; table [3M, 6, hidden], of which row index[s] serves row s."""
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = table.unbind(1)
        h = ops.norm_modulate(x, self.norm1, shift_msa, scale_msa, index)
        h = self.attn(h, rope=rope, attention=attention, ops=ops)
        x, h = ops.gated_add_norm(x, gate_msa, index, h, self.norm2, shift_mlp, scale_mlp)
        return ops.gated_add(x, gate_mlp, index, self.mlp(h, ops=ops))


class RefinerBlock(Core):
    """A block of the token refiner: neither modulation nor positions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [L, hidden] -> [L, hidden]."""
        x = x + self.attn(self.norm1(x), rope=None, attention=sdpa, ops=PLAIN)
        return x + self.mlp(self.norm2(x), ops=PLAIN)


class TokenRefiner(nn.Module):
    """Lets the text rows see each other once per request, before they join the sequence."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(RefinerBlock(config) for _ in range(config.num_refiner_layers))
        self.final_norm = nn.RMSNorm(config.hidden_size, config.final_norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [L, hidden] -> [L, hidden]."""
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)


class FinalLayer(nn.Module):
    """Final norm and the two float32 heads."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.hidden_size, config.final_norm_eps)
        self.video_out = nn.Linear(config.hidden_size, config.video_row_dim)
        self.audio_out = nn.Linear(config.hidden_size, config.audio_in_channels)

    def forward(
        self, x: torch.Tensor, table: torch.Tensor, *, index: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x [S, hidden], table [M, 2, hidden] -> float32 [S, 96] and [S, 32]: all rows in both.

        A head on its own rows alone is the same mathematics, but another GEMM size: other bits. All tiers
        have the reference's roundings here: it is 0.05 % of a step.
        """
        shift, scale = table.unbind(1)
        h = norm_modulate(x, self.norm, shift, scale, index).float()
        return self.video_out(h), self.audio_out(h)
