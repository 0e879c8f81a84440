"""Writes the demo checkpoint: every component, tiny, random, in either layout.

It goes through the same loading path as the release. Both layouts hold the same weights, and the same
seed gives the same bytes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from h3serve.core.errors import OutputError, RequestError
from h3serve.core.model_name import PARTITION_FOLDERS, TRANSFORMERS
from h3serve.models.key_map import KeyMap, Layout
from h3serve.models.transformer.transformer import inverse_frequencies
from h3serve.weights.demo import demo_sizes, demo_weights
from h3serve.weights.demo.demo_tokenizer import build_tokenizer, write_json, write_processor, write_tokenizer
from h3serve.weights.files.checkpoint_folder import open_folder
from h3serve.weights.files.save import save_shards, stored_tensors
from h3serve.weights.formats.checksums import key
from h3serve.weights.formats.components import RECIPES
from h3serve.weights.formats.inspection import record

LAYOUTS: tuple[Layout, ...] = ("original", "diffusers")
SHARDS = {"transformer": 2, "text_encoder": 2, "video_vae": 1, "audio_vae": 1}
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class DemoPart:
    """One network: its config and the tensors that only a file holds, per layout, and its state."""

    name: str
    configs: Mapping[Layout, dict[str, Any]]
    state: Tensors  # by our names, as in memory
    file_only: Mapping[Layout, Tensors] = field(default_factory=dict)

    def key_map(self, layout: Layout) -> KeyMap:
        recipe = RECIPES[self.name]
        return recipe.key_map(recipe.read_config(flat(self.configs[layout])), layout)

    def write(self, folder: Path, layout: Layout, *, weights: Path) -> None:
        """Config and weight files."""
        config = dict(self.configs[layout])
        for inner, file in (("source", "source/config.json"), ("metadata", "metadata.json")):
            if inner in config:
                part = config.pop(inner)
                write_json(folder / file, part if inner == "source" else {inner: part})
        write_json(folder / "config.json", config)
        tensors = stored_tensors(self.state, self.key_map(layout)) | self.file_only.get(layout, {})
        native = layout == "original" or self.name == "text_encoder"
        save_shards(tensors, weights, stem="model" if native else "diffusion_pytorch_model", shards=SHARDS[self.name])


DemoParts = Mapping[str, DemoPart]  # by `probes.key`


def write_demo_checkpoint(folder: Path, layout: Layout = "original", *, seed: int = 0) -> None:
    """Write both partitions with random weights into a new or empty folder; whole or not at all.

    RequestError for another layout or a folder that is in use, OutputError if it cannot be written.
    """
    if layout not in LAYOUTS:
        raise RequestError("layout", layout, "it must be original or diffusers")
    tokenizer = build_tokenizer()
    write_checkpoint(folder, layout, make_parts(tokenizer, seed), tokenizer)


def write_checkpoint(folder: Path, layout: Layout, parts: DemoParts, tokenizer: Tokenizer) -> None:
    """Write these networks, and what their checks compare with, into a new or empty folder; whole or not at all."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise RequestError("folder", str(folder), "it must be new or empty")
    with _whole_or_nothing(folder) as staging:
        if layout == "original":
            _write_original(staging, parts, tokenizer)
        else:
            _write_diffusers(staging, parts, tokenizer)
        record(open_folder(staging), demo_sizes.SIZE_RULES)


def make_parts(tokenizer: Tokenizer, seed: int) -> DemoParts:
    """All networks of a seed, each from a generator of its own."""
    makers = (_transformer, _transformer, _text_encoder, _video_vae, _audio_vae)
    keys = (*(key("transformer", name) for name in TRANSFORMERS), "text_encoder", "video_vae", "audio_vae")
    parts = {}
    for number, (name, make) in enumerate(zip(keys, makers, strict=True)):
        parts[name] = make(torch.Generator().manual_seed(1000 * seed + number), tokenizer)
    return parts


def _transformer(generator: torch.Generator, tokenizer: Tokenizer) -> DemoPart:
    del tokenizer
    configs = {layout: demo_sizes.transformer(layout) for layout in LAYOUTS}
    config = RECIPES["transformer"].read_config(configs["original"])
    state = demo_weights.denoiser(config, generator).state_dict()
    return DemoPart("transformer", configs, state, {"original": {"rope.inv_freq": inverse_frequencies(config)}})


def _text_encoder(generator: torch.Generator, tokenizer: Tokenizer) -> DemoPart:
    values = demo_sizes.text_encoder(tokenizer.get_vocab(with_added_tokens=True))
    recipe = RECIPES["text_encoder"]
    config = recipe.read_config(values)
    tensors = demo_weights.text_encoder(config, generator)
    used = {entry.target for entry in recipe.key_map(config, "original").entries}
    unused = {name: tensor for name, tensor in tensors.items() if name not in used}
    state = {name: tensors[name] for name in used}
    return DemoPart("text_encoder", dict.fromkeys(LAYOUTS, values), state, dict.fromkeys(LAYOUTS, unused))


def _video_vae(generator: torch.Generator, tokenizer: Tokenizer) -> DemoPart:
    del tokenizer
    latents = demo_weights.statistics(24, generator, mean=0.6, std=(0.5, 2.5))
    configs = {layout: demo_sizes.video_vae(layout, latents) for layout in LAYOUTS}
    config = RECIPES["video_vae"].read_config(configs["diffusers"])
    state = demo_weights.video_vae(config, generator).state_dict()
    return DemoPart("video_vae", configs, state, {"original": {"decoder.mask_token": torch.zeros(1, 1, config.width)}})


def _audio_vae(generator: torch.Generator, tokenizer: Tokenizer) -> DemoPart:
    del tokenizer
    latents = demo_weights.statistics(32, generator, mean=0.25, std=(1.4, 2.8))
    configs = {layout: demo_sizes.audio_vae(layout, latents) for layout in LAYOUTS}
    config = RECIPES["audio_vae"].read_config(configs["diffusers"])
    return DemoPart("audio_vae", configs, demo_weights.audio_vae(config, generator).state_dict())


def _write_original(root: Path, parts: DemoParts, tokenizer: Tokenizer) -> None:
    first, *others = (root / name for name in PARTITION_FOLDERS)
    _write_shared(first, parts, tokenizer, layout="original")
    for folder in others:  # the release repeats these files; here they are the same ones twice
        shutil.copytree(first, folder, copy_function=_link)
    for name, partition in PARTITION_FOLDERS.items():
        write_json(root / name / "model_index.json", demo_sizes.partition_index(partition))
        folder = root / name / "transformer"
        parts[key("transformer", partition)].write(folder, "original", weights=folder)


def _write_diffusers(root: Path, parts: DemoParts, tokenizer: Tokenizer) -> None:
    _write_shared(root, parts, tokenizer, layout="diffusers")
    for partition, name in TRANSFORMERS.items():
        parts[key("transformer", partition)].write(root / name, "diffusers", weights=root / name)
    for name, shift in (("scheduler", demo_sizes.SHIFTS.video), ("audio_scheduler", demo_sizes.SHIFTS.audio)):
        write_json(root / name / "scheduler_config.json", demo_sizes.scheduler(shift))
    write_json(root / "modular_model_index.json", demo_sizes.diffusers_index())


def _write_shared(root: Path, parts: DemoParts, tokenizer: Tokenizer, *, layout: Layout) -> None:
    """All that both partitions have in common."""
    original = layout == "original"
    video = root / ("video_vae" if original else "vae")
    parts["video_vae"].write(video, layout, weights=video / "source" if original else video)
    for name in ("audio_vae", "text_encoder"):
        parts[name].write(root / name, layout, weights=root / name)
    write_tokenizer(tokenizer, root / "tokenizer")
    write_processor(tokenizer, root / "processor")


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """As `layout.py` reads it: the original video VAE's two files as one dict."""
    return {**config.get("source", {}), **{name: value for name, value in config.items() if name != "source"}}


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


@contextmanager
def _whole_or_nothing(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that takes its name at the end; gone if anything fails."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            yield staging
            staging.chmod(0o755)
            staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise OutputError(f"{folder} could not be written: {error}") from error
