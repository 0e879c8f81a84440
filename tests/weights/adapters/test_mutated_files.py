"""3,000 damaged adapter files: each gives an adapter or one sentence, quickly, and never anything else."""

import json
import random
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from h3serve.core.errors import CheckpointError
from h3serve.weights.adapters import open_adapter as door
from h3serve.weights.adapters.adapter_layers import adapter_layers
from tests.weights.adapters.dialect_writer import (
    CONFIG,
    HIDDEN,
    in_diffusers_names,
    in_flat_names,
    in_native_names,
    random_factors,
    write,
)

FILES, PARTS = 3000, 10
NAMES = ("blocks.0.mlp.fc2", "blocks.0.attn.qkv_proj", "blocks.1.mlp.fc1", "final_layer.video_out")


def _seeds(folder: Path) -> list[bytes]:
    factors = random_factors(NAMES)
    header = {"lora_adapter_metadata": json.dumps({"transformer.lora_alpha": 3}), "alpha": "8", "tasks": "t2va"}
    whole = {f"{NAMES[3]}.diff_b": np.ones(96, np.float32), "proj_out.weight": np.ones((2, 96, HIDDEN), np.float32)}
    files = [
        write(folder / "a", in_diffusers_names(factors), prefix="transformer.", header=header),
        write(folder / "b", in_flat_names(factors), prefix="lora_unet_", suffix="down", alpha=1.0),
        write(folder / "c", in_native_names(factors), suffix="default", header={"qkv_layout": "grouped"}),
        write(folder / "d", {}, more=whole),
    ]
    return [file.read_bytes() for file in files]


def _mutated(data: bytes, rng: random.Random) -> bytes:
    """Bytes exchanged, cut, added or doubled, or an entry of the header made odd."""
    kind = rng.randrange(5)
    if kind == 0:
        return data[: rng.randrange(len(data))]
    if kind == 1:
        at = rng.randrange(len(data))
        return data[:at] + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9))) + data[at:]
    length = int.from_bytes(data[:8], "little")
    if kind == 2:
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 6)):
            changed[rng.randrange(8 + length if rng.random() < 0.7 else len(data))] = rng.randrange(256)
        return bytes(changed)
    header = json.loads(data[8 : 8 + length])
    name = rng.choice(list(header))
    odd = [
        None,
        [],
        {},
        -1,
        2**63,
        1e308,
        "F32",
        "BF16",
        "F4",
        [0, 0],
        [2, "x"],
        True,
        {"a": {"b": []}},
        "\x00",
        "nan",
        "8",
    ]
    if isinstance(header[name], dict) and kind == 3:
        header[name][rng.choice([*header[name], "extra"])] = rng.choice(odd)
    elif rng.random() < 0.5:
        entry = header.pop(name)
        other = rng.choice(
            [*header, "x", "", ".", "a\nb", "y" * 3000, name + ".alpha", name.replace(".lora", ""), "lora_unet_" + name]
        )
        header[other] = entry
    else:
        header[name] = rng.choice(odd)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


@pytest.mark.parametrize("part", range(PARTS))
def test_mutated_files(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = adapter_layers(CONFIG)
    monkeypatch.setattr(door, "adapter_layers", lambda config: known)
    rng, seeds, refused = random.Random(part), _seeds(tmp_path), 0
    file = tmp_path / "mutated.safetensors"
    for _ in range(FILES // PARTS):
        data = rng.choice(seeds)
        for _ in range(rng.randrange(1, 3)):
            mutated = _mutated(data, rng) if len(data) > 16 else data
            data = mutated if mutated[8:9] == b"{" and _has_json(mutated) else data
        file.write_bytes(mutated)
        started = time.monotonic()
        try:
            adapter = door.open_adapter(file, CONFIG)
        except CheckpointError as error:
            refused += 1
            assert str(file) in str(error) and "\n" not in str(error) and len(str(error)) < 2000
        else:
            assert adapter.updates and all(torch.isfinite(value) for value in _scales(adapter))
        assert time.monotonic() - started < 5
    assert refused > FILES // PARTS // 2


def _has_json(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]), dict)
    except ValueError:
        return False


def _scales(adapter: door.Adapter) -> list[torch.Tensor]:
    return [torch.tensor(scale.value) for scale in adapter.scales]
