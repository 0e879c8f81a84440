"""Alpha and rank of an adapter's layers: where they are looked for, in order; what is done where nothing is said."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from h3serve.core.errors import CheckpointError
from h3serve.weights.adapters.updates import Scale
from h3serve.weights.files.tensor_index import read_json

PEFT_HEADER = "lora_adapter_metadata"  # JSON of a PEFT configuration, fields prefixed with the component's name
ALPHA_KEYS = ("lora_alpha", "network_alpha", "alpha", "ss_network_alpha")
RANK_KEYS = ("lora_rank", "rank", "network_dim", "ss_network_dim")
# LightX2V's files by name, a contract of theirs: task, evaluations, version, resolution and more -> alpha, at rank 128.
# v0.1 carries no alpha: alpha = rank, the usual rule, would make it 16 times too strong.
KNOWN = re.compile(r"minimax_h3_(?P<task>fl2v|ref2v)_turbo_(?P<steps>\d+)step_v(?P<version>\d+\.\d+)(?P<rest>.*)")
KNOWN_RANK = 128
FUSED = 3  # times the rank, where the factors of q, k and v were stacked into one
KNOWN_ALPHA = (
    (r"fl2v_4_0\.1_768p_sla.*", 128.0),
    (r"fl2v_4_1\.[01]_768p.*", 128.0),
    (r"fl2v_4_(0\.1|1\.2).*", 8.0),
    (r"fl2v_8_1\.0.*", 8.0),
    (r"ref2v_4_0\.1.*", 8.0),
    (r"ref2v_8_1\.0.*", 8.0),
)
FEW_STEPS = re.compile(r"turbo|lightning|distill|dmd|\d+[-_]?steps?(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class AlphaRule:
    """What is known of alpha and rank outside the tensors; `scale` puts it together for one layer."""

    file: Path
    explicit: float | None  # the caller's
    peft: Mapping[str, Any] = field(default_factory=dict)
    peft_source: str = ""
    general: float | None = None  # for all layers alike
    general_source: str = ""
    stated_rank: int | None = None  # what the header says; the tensors' own rank counts but where they are fused

    def scale(self, layer: str, rank: int, stored: float | None) -> Scale:
        """The factor of a layer, named without the file's prefix, whose factors have this rank.

        `stored` is its own alpha tensor. LightX2V's fused files stack three factors, so that the tensors' rank is three
        times the one that a general alpha was stated for: then the stated one counts.
        """
        fused = self.stated_rank is not None and rank == FUSED * self.stated_rank
        divisor = self.stated_rank if fused and self.stated_rank else rank
        if self.explicit is not None:
            return Scale(self.explicit / divisor, rank, self.explicit, "given by the caller")
        if stored is not None:  # LyCORIS and fused files have put into it whatever makes this right
            return Scale(stored / rank, rank, stored, "the layer's own")
        if "lora_alpha" in self.peft:
            alpha = _by_pattern(self.peft["alpha_pattern"], layer, self.peft["lora_alpha"])
            root = math.sqrt(divisor) if self.peft.get("use_rslora") else divisor
            return Scale(alpha / root, rank, alpha, self.peft_source)
        if self.general is not None:
            return Scale(self.general / divisor, rank, self.general, self.general_source)
        return Scale(1.0, rank, float(rank), "nowhere: alpha = rank")

    def warning(self) -> str | None:
        """A sentence if the file looks like a few-step adapter and says nothing of alpha."""
        told = self.explicit is not None or self.general is not None or "lora_alpha" in self.peft
        if told or not FEW_STEPS.search(self.file.stem):
            return None
        what = "looks like a few-step adapter and says nothing of alpha"
        return f"{self.file.name} {what}: alpha = rank may be far too strong; give alpha"


def alpha_rule(file: Path, header: Mapping[str, str], *, sidecar: str | None, explicit: float | None) -> AlphaRule:
    """What is said of alpha by the caller, the file beside it, the header, or the list of known files."""
    rank = next((_number(file, key, header[key]) for key in RANK_KEYS if key in header), None)
    stated = int(rank) if rank else None
    peft, source = _peft(file, header, sidecar)
    if "lora_alpha" in peft or explicit is not None:
        return AlphaRule(file, explicit, peft, source, stated_rank=stated)
    if (
        sidecar == "config.json"
        and (beside := file.with_name(sidecar)).is_file()
        and "alpha" in (told := read_json(beside))
    ):
        alpha, rank = (_number(beside, key, told[key]) if key in told else None for key in ("alpha", "rank"))
        return AlphaRule(file, None, general=alpha, general_source=sidecar, stated_rank=int(rank) if rank else None)
    for key in ALPHA_KEYS:
        if key in header:
            alpha = _number(file, key, header[key])
            return AlphaRule(file, None, general=alpha, stated_rank=stated, general_source=f"the header's {key}")
    if known := KNOWN.fullmatch(file.stem):
        asked = "{task}_{steps}_{version}{rest}".format(**known.groupdict())
        alpha = next((alpha for pattern, alpha in KNOWN_ALPHA if re.fullmatch(pattern, asked)), None)
        if alpha is not None:
            return AlphaRule(
                file, None, general=alpha, stated_rank=KNOWN_RANK, general_source=f"known of files named {file.stem}"
            )
    return AlphaRule(file, None)


def _peft(file: Path, header: Mapping[str, str], sidecar: str | None) -> tuple[dict[str, Any], str]:
    """A PEFT configuration, from the file beside the adapter or its header."""
    if sidecar == "adapter_config.json" and (beside := file.with_name(sidecar)).is_file():
        return _checked(beside, read_json(beside)), sidecar
    if PEFT_HEADER not in header:
        return {}, ""
    try:
        told = json.loads(header[PEFT_HEADER])
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise CheckpointError(f"{file}: the header's {PEFT_HEADER} is not a JSON object")
    plain = {re.sub(r"^transformer(_ref)?\.", "", key): value for key, value in told.items()}
    return _checked(file, plain), f"the header's {PEFT_HEADER}"


def _checked(file: Path, config: dict[str, Any]) -> dict[str, Any]:
    """A PEFT configuration's fields that are read; one that would change the result and is not read is refused."""
    if config.get("lora_alpha") is None:
        config.pop("lora_alpha", None)
    else:
        config["lora_alpha"] = _number(file, "lora_alpha", config["lora_alpha"])
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise CheckpointError(f"{file}: alpha_pattern is {patterns!r}, not an object")
    config["alpha_pattern"] = {name: _number(file, f"alpha_pattern of {name}", a) for name, a in patterns.items()}
    for key in ("modules_to_save", "layer_replication", "trainable_token_indices"):
        if config.get(key):
            raise CheckpointError(f"{file}: {key} is {config[key]!r}, which is not read")
    if (bias := config.get("bias", "none")) not in ("none", None):
        raise CheckpointError(f"{file}: bias is {bias!r}, only none is read")
    return config


def _by_pattern(patterns: Mapping[str, float], layer: str, default: float) -> float:
    """PEFT's rule: a pattern is a name, or the end of one after a dot, and may be a regular expression."""
    for pattern, value in patterns.items():
        try:
            if re.fullmatch(rf"(.*\.)?({pattern})", layer):
                return value
        except re.error:
            continue
    return default


def _number(file: Path, key: str, value: Any) -> float:
    """A finite number, which headers spell as a string; negative alphas are legal, zero ranks are not."""
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or (key in (*RANK_KEYS, "rank") and (number < 1 or number % 1)):
        raise CheckpointError(f"{file}: {key} is {str(value)[:80]!r}, not a number")
    return number
