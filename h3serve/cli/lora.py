"""`h3serve lora`: what an adapter's file holds, and the same file for another program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from h3serve.cli.console import say
from h3serve.cli.request_flags import with_strength
from h3serve.core.errors import RequestError

if TYPE_CHECKING:  # they bring torch
    from h3serve.models.transformer.transformer_config import TransformerConfig
    from h3serve.weights.adapters.open_adapter import Adapter

app = typer.Typer(help="Adapters (LoRA and its relatives).", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="A safetensors file.")]
Model = Annotated[str | None, typer.Option(help="A folder, hub id, demo or demo-random; else the released sizes.")]
Partitioned = Annotated[str | None, typer.Option(help="Of the base, fl2va or ref2va: an adapter of the other fails.")]
Rows = Annotated[str | None, typer.Option(help="Rows of q, k and v in one layer: stacked or interleaved.")]
Alpha = Annotated[float | None, typer.Option(help="Instead of what the file says.")]
FORMS = ("comfy", "diffusers", "peft")


@app.command("inspect")
def inspect(
    file: File, model: Model = None, partition: Partitioned = None, qkv_layout: Rows = None, alpha: Alpha = None
) -> None:
    """Print dialect, layers, rank, alpha and where it came from, and what one should know."""
    adapter = _open(file, _config(model, partition), partition, qkv_layout, alpha)
    say(f"{file}: {adapter.dialect}, {len(adapter.file.tensors)} tensors")
    kinds: dict[str, int] = {}
    for update in adapter.updates:
        kinds[type(update).__name__] = kinds.get(type(update).__name__, 0) + 1
    say(f"updates: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}")
    say(f"layers: {adapter.layers} of {adapter.layers_there}")
    for scale, count in adapter.scales.most_common():
        said = f"alpha {scale.alpha:g} ({scale.source}), scale {scale.value:g}"
        say(f"rank {scale.rank}: {said}, {count} updates" if scale.rank else f"{scale.source}: {count} updates")
    told = {
        "rows of q, k, v": adapter.qkv_rows,
        "made for": adapter.partition,
        "trained on": adapter.trained_on,
        "needs": ", ".join(adapter.needs),
    }
    for what, value in told.items():
        if value:
            say(f"{what}: {value}")
    for warning in adapter.warnings:
        say(f"warning: {warning}")


@app.command("convert")
def convert(
    file: File,
    out: Annotated[Path, typer.Argument(help="A new file; for peft a new folder.")],
    to: Annotated[str, typer.Option(help="comfy, diffusers or peft.")],
    model: Model = None,
    qkv_layout: Rows = None,
    alpha: Alpha = None,
) -> None:
    """Write an adapter as another program reads it."""
    from h3serve.weights.adapters.adapter_layers import adapter_layers
    from h3serve.weights.adapters.convert_adapter import convert_adapter

    if to not in FORMS:
        raise RequestError("to", to, f"it must be {', '.join(FORMS)}")
    config = _config(model, None)
    adapter = _open(file, config, None, qkv_layout, alpha)
    convert_adapter(adapter, adapter_layers(config), to, out)  # type: ignore[arg-type]
    say(f"{out}: {adapter.layers} layers")


@app.command("merge")
def merge(
    model: Annotated[str, typer.Argument(help="A folder, hub id, demo or demo-random.")],
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    lora: Annotated[list[str], typer.Option(help="FILE or FILE=STRENGTH; may be given again.")],
    partition: Annotated[str, typer.Option(help="fl2va or ref2va.")] = "fl2va",
    qkv_layout: Rows = None,
    alpha: Alpha = None,
) -> None:
    """Write a checkpoint with adapters merged into its transformer, and say what rounding took of them."""
    from h3serve.weights.adapters.merge_adapters import merge_adapters
    from h3serve.weights.locate import locate

    config = _config(model, partition)
    adapters = [
        (_open(Path(file), config, partition, qkv_layout, alpha), strength)
        for file, strength in map(with_strength, lora)
    ]
    for adapter, _ in adapters:
        for warning in adapter.warnings:
            say(f"warning: {warning}")
    merged = merge_adapters(locate(model), partition, adapters, out)  # type: ignore[arg-type]
    say(f"{out}: {merged.tensors} tensors changed, {merged.lost:.1%} of the change lost to rounding")


def _open(
    file: Path, config: TransformerConfig, partition: str | None, qkv_layout: str | None, alpha: float | None
) -> Adapter:
    from h3serve.weights.adapters.open_adapter import open_adapter

    if qkv_layout not in (None, "stacked", "interleaved"):
        raise RequestError("qkv-layout", qkv_layout, "it must be stacked or interleaved")
    if partition not in (None, "fl2va", "ref2va"):
        raise RequestError("partition", partition, "it must be fl2va or ref2va")
    return open_adapter(file, config, partition=partition, qkv_layout=qkv_layout, alpha=alpha)  # type: ignore[arg-type]


def _config(model: str | None, partition: str | None) -> TransformerConfig:
    """Sizes of a model's transformer, or those of the release."""
    from h3serve.models.transformer.transformer_config import TransformerConfig
    from h3serve.weights.formats.opened_component import open_component
    from h3serve.weights.locate import locate

    if model is None:
        return TransformerConfig()
    folder = locate(model)
    chosen = partition if partition in ("fl2va", "ref2va") else next(iter(folder.partitions))
    return open_component(folder, "transformer", chosen).config  # type: ignore[arg-type,no-any-return]
