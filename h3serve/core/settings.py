"""How an engine runs. Each option is defined once, here: name, type, default and the sentence that explains it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from h3serve.core.errors import RequestError
from h3serve.core.limits import Partition, Quality

Partitions = Literal["fl2va", "ref2va", "both"]
ADAPTER_SUFFIX = ".safetensors"  # of the files in an adapter folder

Residency = Literal["auto", "resident", "offload", "stream"]
DType = Literal["auto", "float32", "bfloat16"]
Quantize = Literal["auto", "none", "fp8"]
EncoderShare = Literal["auto", "sharded", "replicated"]


def one_of(choices: Any) -> str:
    """The values of a `Literal` in words: "auto, none or fp8"."""
    *first, last = get_args(choices)
    return f"{', '.join(first)} or {last}"


def option(default: Any, text: str, **shown: Any) -> Any:
    """Returns a field of a settings class, with `text` saying what it does: to the command line, and to who reads here.

    `shown` holds what differs on the command line: `flag` (not the field's name), `command_line` (another default),
    `least` (a lower bound), `unit` (that a flag's number counts in).
    """
    return field(default=default, metadata={"help": text, **shown})


@dataclass(frozen=True)
class ModelSettings:
    """Which checkpoint, which partition, and how it is held and computed, wherever it runs."""

    model: str = option("demo", "A folder, a hub id, or demo.")
    partition: Partitions = option("fl2va", "fl2va, ref2va, or both: two transformers, the rest shared.")
    dtype: DType = option("auto", "float32, bfloat16, or auto: float32 on a CPU, the release's bfloat16 on a GPU.")
    quality: Quality = option("lossless", "exact, lossless, or fast: layers of 8 bits, half the memory.")
    quantize: Quantize = option(
        "auto", "Linear layers of transformer and text encoder: none, fp8, or auto: fp8 at fast."
    )
    residency: Residency = option("auto", "Where weights live: auto, resident, offload or stream.")
    cache: Path | None = option(
        None, "Folder for what is made once or fetched, and kept; ~/.cache/h3serve if left out."
    )
    encodings_cache: Path | None = option(
        None, "Keep encoded prompts and references in this folder, for later runs too; in memory only if left out."
    )
    revision: str | None = option(None, "Revision of a hub id.")
    adapter_folder: Path | None = option(
        None, "Folder of adapters (*.safetensors), which requests name by their names in it."
    )
    carry_request: bool = option(
        True, "Say in MP4 files how they were made: request, version, checkpoint, adapters; no paths or keys."
    )
    gpus: int = option(1, "GPUs that make one video together.")
    ulysses: int | None = option(None, "Of them, so many share the sequence; chosen if left out.")
    tp: int | None = option(None, "So many share every linear layer; chosen if left out.")
    text_encoder: EncoderShare = option(
        "auto", "On several GPUs: sharded over them, replicated on each, or auto: sharded where it can be."
    )

    @property
    def float8(self) -> bool:
        """Whether linear layers are quantized to 8 bits while they are read."""
        return is_float8(self.quality, self.quantize)


@dataclass(frozen=True)
class EngineSettings(ModelSettings):
    """A model on one device, or with `gpus` on several of one kind."""

    device: str = option("cuda", "cpu, cuda, cuda:N, or auto: a GPU if there is one.", command_line="auto")

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as another process takes them: paths as text."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}


def cache_folder(setting: str | Path | None) -> Path:
    """The folder for what is made once and kept: `~/.cache/h3serve` by default. RequestError for an unknown home."""
    try:
        return Path(setting or Path.home() / ".cache" / "h3serve").expanduser()
    except RuntimeError as error:
        said = "" if setting is None else str(setting)
        raise RequestError("cache", said, f"a folder has to be named: {str(error).lower()}") from None


def check_adapter_folder(folder: str | Path | None) -> Path | None:
    """The folder that adapters are named in. RequestError unless it is one."""
    if folder is None or (found := Path(folder).expanduser()).is_dir():
        return None if folder is None else found
    raise RequestError("adapter_folder", str(folder), "a folder that is there")


def partitions_of(setting: Partitions) -> tuple[Partition, ...]:
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
    if quantize not in get_args(Quantize):
        raise RequestError("quantize", quantize, one_of(Quantize))
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
