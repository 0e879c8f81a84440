"""Packs trained weights into what comes with the package: python -m demo.write --vaes FOLDER --fl2va FILE ...

The result is small enough to lie in the package; `--checkpoint FOLDER` unpacks it into a checkpoint in the original
layout, which any command takes as its model.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from demo.train import denoiser_sizes, sizes
from demo.train.weights import read_statistics
from h3serve.weights.demo.demo_tokenizer import write_json
from h3serve.weights.demo.demo_trained import (
    CONFIG,
    LAYERS,
    TOKENIZER,
    TRAINED,
    digest_of,
    file_names,
    write_trained_checkpoint,
)
from h3serve.weights.formats.checksums import key

Tensors = dict[str, torch.Tensor]
VAES = ("video_vae", "audio_vae")


def pack(sources: dict[str, Path], tokenizer: Path, out: Path) -> None:
    """`sources` name the weights of every part by `probes.key`; the VAEs have their statistics beside them."""
    out.mkdir(parents=True, exist_ok=True)
    names = file_names()
    for part, source in sources.items():
        tensors = load_file(source)
        save_file(without_idle_layers(tensors) if part == "text_encoder" else tensors, out / names[part])
    shutil.copyfile(tokenizer, out / TOKENIZER)
    files = sorted([*names.values(), TOKENIZER])
    write_json(out / CONFIG, {"configs": configs(sources, tokenizer), "files": {n: digest_of(out / n) for n in files}})


def configs(sources: dict[str, Path], tokenizer: Path) -> dict[str, Any]:
    """Of every network, as in the original layout."""
    vocabulary = Tokenizer.from_file(str(tokenizer)).get_vocab(with_added_tokens=True)
    return {
        "transformer": denoiser_sizes.transformer(),
        "text_encoder": denoiser_sizes.text_encoder(vocabulary),
        "video_vae": sizes.video_vae(read_statistics(sources["video_vae"])),
        "audio_vae": sizes.audio_vae(read_statistics(sources["audio_vae"])),
    }


def without_idle_layers(tensors: Tensors) -> Tensors:
    """Without the decoder layers that add nothing, because both of their output projections are zero."""
    outputs = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
    layers = {match.group() for name in tensors if (match := LAYERS.match(name))}
    idle = {layer for layer in layers if not any(tensors[layer + output].any() for output in outputs)}
    return {name: t for name, t in tensors.items() if not (m := LAYERS.match(name)) or m.group() not in idle}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vaes", type=Path, required=True, help="folder that training wrote both VAEs into")
    parser.add_argument("--fl2va", type=Path, required=True, help="weights of its denoiser")
    parser.add_argument("--ref2va", type=Path, required=True, help="weights of its denoiser")
    parser.add_argument("--encoder", type=Path, required=True, help="weights of the text encoder")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=TRAINED)
    parser.add_argument("--checkpoint", type=Path, help="also write the whole checkpoint, into a new folder")
    given = parser.parse_args()
    sources = {name: given.vaes / f"{name}.safetensors" for name in VAES} | {"text_encoder": given.encoder}
    sources |= {key("transformer", "fl2va"): given.fl2va, key("transformer", "ref2va"): given.ref2va}
    pack(sources, given.tokenizer, given.out)
    if given.checkpoint:
        write_trained_checkpoint(given.checkpoint, given.out)


if __name__ == "__main__":
    main()
