"""What a request costs: floating-point operations and bytes, from sizes alone (spec/transformer.md 2.8-2.9)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSize:
    """Widths and depths that decide the cost; defaults are the released model's."""

    hidden: int = 5376
    inner: int = 7168  # heads * head_dim
    ffn: int = 14336
    layers: int = 50
    core_params: int = 20_083_623_168  # without the AdaLN projections
    adaln_params: int = 13_039_369_728
    encoder_params: int = 25_753_095_920  # 50 decoder layers, vision tower, embeddings
    encoder_hidden: int = 5120
    encoder_ffn: int = 25600
    vae_params: int = 2_603_868_984 + 151_300_000
    value_bytes: int = 2  # of a weight of transformer and text encoder

    @property
    def runs_like_the_release(self) -> bool:
        """Whether what was measured of the released model says anything about this one."""
        mine, release = ((m.hidden, m.inner, m.ffn, m.layers) for m in (self, ModelSize()))
        return mine == release


RELEASED_MODEL = ModelSize()
GIB = 2**30


def linear_flops(rows: int, model: ModelSize = RELEASED_MODEL) -> float:
    """FLOPs of the linear layers of all blocks in one evaluation over `rows` packed rows."""
    return 2.0 * model.layers * rows * (4 * model.hidden * model.inner + 3 * model.hidden * model.ffn)


def attention_flops(rows: int, model: ModelSize = RELEASED_MODEL) -> float:
    """FLOPs of all blocks' attention in one evaluation: they grow with the square of the rows."""
    return 4.0 * model.layers * rows * rows * model.inner


def step_flops(rows: int, model: ModelSize = RELEASED_MODEL) -> float:
    """FLOPs of one model evaluation over `rows` packed rows."""
    return linear_flops(rows, model) + attention_flops(rows, model)


def weight_bytes(model: ModelSize) -> dict[str, int]:
    """Bytes of each component when it is resident; the VAEs are always float32."""
    return {
        "transformer": model.core_params * model.value_bytes,
        "modulation": model.adaln_params * model.value_bytes,
        "text_encoder": model.encoder_params * model.value_bytes,
        "vaes": model.vae_params * 4,
    }


def text_bytes(tokens: int, model: ModelSize) -> int:
    """Device bytes that the text encoder needs beside its weights: the widest moment of a decoder layer."""
    return tokens * 3 * (model.encoder_hidden + model.encoder_ffn) * model.value_bytes


def modulation_bytes(timesteps: int, model: ModelSize) -> int:
    """Device bytes of the modulation tables of so many timesteps (spec/checkpoint.md 1.5)."""
    return timesteps * (model.layers * 18 + 2) * model.hidden * model.value_bytes


def step_bytes(rows: int, model: ModelSize) -> int:
    """Device bytes that one evaluation needs beside the weights: the widest moment of a block.

    Residual stream before and after attention, its normed copy and the next one, then either q, k, v and the
    attention output, or the MLP's two inner widths and their product. On an H200, 65,400 to 65,700 values a row
    were seen at 22 and 33 thousand rows, this says 64,512.
    """
    widest = max(4 * model.inner, 3 * model.ffn)
    return rows * (4 * model.hidden + widest) * model.value_bytes
