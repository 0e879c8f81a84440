"""How an engine runs: one frozen value per concern, defaults in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from h3serve.core.errors import RequestError
from h3serve.core.limits import Partition, Quality

QUANTIZE = ("auto", "none", "fp8")
Residency = Literal["auto", "resident", "offload", "stream"]
DType = Literal["auto", "float32", "bfloat16"]
Quantize = Literal["auto", "none", "fp8"]
EncoderShare = Literal["auto", "sharded", "replicated"]


@dataclass(frozen=True)
class EngineSettings:
    """Which checkpoint, which partition, on which device, at which tier."""

    model: str  # a folder, a hub id, or "demo"
    partition: Partition | Literal["both"] = "fl2va"  # both: two transformers, the rest shared
    device: str = "cuda"  # cpu, cuda, cuda:N, or auto: a GPU if there is one
    dtype: DType = "auto"  # auto: float32 on cpu, the release's bfloat16 on cuda
    quality: Quality = "lossless"
    quantize: Quantize = "auto"  # layers of transformer and text encoder; auto: what the tier runs on
    residency: Residency = "auto"
    cache: str | None = None  # folder for what is made once or fetched, and kept; ~/.cache/h3serve if left out
    encodings_cache: str | None = None  # folder where encoded prompts and references are kept; None: in memory only
    revision: str | None = None
    gpus: int = 1  # ranks that make one clip together
    ulysses: int | None = None  # of them, so many share the sequence (None: follows from tp, or is chosen)
    tp: int | None = None  # and so many share every linear
    text_encoder: EncoderShare = "auto"  # over all ranks or whole on each; auto: sharded where it can be

    @property
    def float8(self) -> bool:
        """Whether linear layers are quantized to 8 bits while they are read."""
        return is_float8(self.quality, self.quantize)


def cache_folder(setting: str | Path | None) -> Path:
    """The folder for what is made once and kept: `~/.cache/h3serve` by default. RequestError for an unknown home."""
    try:
        return Path(setting or Path.home() / ".cache" / "h3serve").expanduser()
    except RuntimeError as error:
        said = "" if setting is None else str(setting)
        raise RequestError("cache", said, f"a folder has to be named: {str(error).lower()}") from None


def partitions_of(setting: Partition | Literal["both"]) -> tuple[Partition, ...]:
    """What an engine with this setting loads; the first one's folder also gives what both share."""
    return ("fl2va", "ref2va") if setting == "both" else (setting,)


def one_partition(wanted: Partition | None, there: tuple[Partition, ...], *, said: str) -> Partition:
    """The partition that is meant: named, or the only one. RequestError, after `said` with what is there."""
    if wanted is None and len(there) == 1:
        return there[0]
    if wanted is None or wanted not in there:
        raise RequestError("partition", wanted, f"{said} {' and '.join(there)}")
    return wanted


def is_float8(quality: str, quantize: str) -> bool:
    """Whether a tier with this option runs on layers of 8 bits. RequestError where the two exclude each other."""
    if quantize not in QUANTIZE:
        raise RequestError("quantize", quantize, "auto, none or fp8")
    if quantize == "fp8" and quality == "exact":
        raise RequestError(
            "quantize", quantize, "the exact tier computes with the weights as they are: lossless or fast"
        )
    if quantize == "none" and quality == "fast":
        raise RequestError("quantize", quantize, "the fast tier runs on layers of 8 bits: fp8 or auto")
    return quantize == "fp8" or quality == "fast"


def check_quality(asked: Quality | None, *, quality: Quality, quantize: str) -> None:
    """RequestError for a request that asks for another tier than what the engine runs at.

    On layers of 8 bits `lossless` would not be what the name promises: such an engine takes requests without it.
    """
    if asked is None:
        return
    if asked != quality:
        raise RequestError("quality", asked, f"this model was loaded at {quality}")
    if quality != "fast" and is_float8(quality, quantize):
        raise RequestError("quality", asked, "this model's layers were quantized to 8 bits; leave quality out")
