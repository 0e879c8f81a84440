"""What users of other programs ran into with adapters at run time, by the numbers of the field's list."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from h3serve.models.kernels.float8_linear import Float8Linear, quantize
from h3serve.runtime.adapters.adapted_layer import AdaptedLayer
from h3serve.runtime.adapters.adapter_terms import LowRankTerm
from h3serve.weights.demo.demo_random import write_demo_checkpoint
from h3serve.weights.files.save import save_shards
from h3serve.weights.formats.checksums import FILE as CHECKSUMS
from tests.paths import ROOT

ROWS, COLUMNS, CPU = 256, 128, torch.device("cpu")


def low_rank(seed: int, size: float) -> LowRankTerm:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(4, COLUMNS, generator=generator), torch.randn(ROWS, 4, generator=generator) * size
    return LowRankTerm(0, ROWS, 1.0, a, b)


def delta(term: LowRankTerm) -> torch.Tensor:
    return term.b.double() @ term.a.double()


def test_l18_a_small_delta_is_not_lost_to_rounding() -> None:
    """Added to 16-bit weights most of it would be: beside them all of it arrives."""
    torch.manual_seed(0)
    layer = nn.Linear(COLUMNS, ROWS, bias=False).bfloat16().requires_grad_(False)
    term, x = low_rank(1, 2e-5), torch.randn(64, COLUMNS).bfloat16()
    exact = F.linear(x.double(), delta(term))
    merged = (layer.weight.double() + delta(term)).bfloat16()
    by_merging = F.linear(x.double(), merged.double() - layer.weight.double())
    adapted = AdaptedLayer([term], outputs=ROWS, device=CPU, dtype=torch.bfloat16)
    beside = adapted(layer, (x,), torch.zeros(64, ROWS, dtype=torch.bfloat16)).double()
    lost_by_merging, lost_beside = ((found - exact).norm() / exact.norm() for found in (by_merging, beside))
    assert lost_by_merging > 0.5 and lost_beside < 0.01


def test_l33_a_stack_on_8_bit_layers_is_the_sum() -> None:
    torch.manual_seed(0)
    plain, x = nn.Linear(COLUMNS, ROWS, bias=False).requires_grad_(False), torch.randn(64, COLUMNS)
    layer, given = Float8Linear(plain, torch.float32), quantize(x)
    layer.set_weight(plain.weight)
    before, stack = layer(given), [low_rank(seed, 0.05).times(seed - 1.5) for seed in (1, 2, 3)]
    layer.register_forward_hook(AdaptedLayer(stack, outputs=ROWS, device=CPU, dtype=torch.float32))
    wanted = sum(F.linear(given.float().double(), term.factor * delta(term)) for term in stack)
    torch.testing.assert_close((layer(given) - before).double(), wanted, atol=1e-4, rtol=1e-4)


MERGE = """
import resource, sys
from pathlib import Path
from h3serve.weights.adapters.merge_adapters import merge_adapters
from h3serve.weights.adapters.open_adapter import open_adapter
from h3serve.weights.files.checkpoint_folder import open_folder
from h3serve.weights.formats.opened_component import open_component

model, file, out = (Path(name) for name in sys.argv[1:])
config = open_component(open_folder(model), "transformer", "fl2va").config
adapter = open_adapter(file, config)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
merge_adapters(open_folder(model), "fl2va", [(adapter, 1.0)], out)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_l39_merging_holds_one_weight_file_at_a_time(tmp_path: Path) -> None:
    """A transformer of 300 MB in 8 files is merged with less than two of them, and one weight in float32, in memory."""
    write_demo_checkpoint(tmp_path / "model")
    folder = tmp_path / "model" / "FL2VA" / "transformer"
    config = json.loads((folder / "config.json").read_text())
    tensors = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
    for file in folder.glob("model*"):
        file.unlink()
    (tmp_path / "model" / "FL2VA" / CHECKSUMS).unlink()
    wide = config["ffn_hidden_size"] = 131_072
    (folder / "config.json").write_text(json.dumps(config))
    for name in [name for name in tensors if ".mlp." in name]:
        shape = (2 * wide, 64) if "fc1" in name else (64, wide)
        tensors[name] = torch.zeros(shape, dtype=torch.bfloat16)
    save_shards(tensors, folder, stem="model", shards=8)
    largest = max(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert sum(file.stat().st_size for file in folder.glob("*.safetensors")) > 250e6
    fc1 = {"a.lora_A.weight": torch.randn(2, 64), "a.lora_B.weight": torch.randn(2 * wide, 2)}
    adapter = {f"blocks.{n}.mlp.fc1{name[1:]}": value.clone() for n in range(4) for name, value in fc1.items()}
    save_file(adapter, tmp_path / "a.safetensors")
    arguments = [str(tmp_path / name) for name in ("model", "a.safetensors", "out")]
    done = subprocess.run([sys.executable, "-c", MERGE, *arguments], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    weight = 2 * wide * 64 * 4  # the largest in float32
    assert int(done.stdout) < 2 * largest + 5 * weight
