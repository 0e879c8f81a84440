"""A weight update as a caller names it: checked by every rank, then made by every rank, or by none."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from h3serve.core.errors import CheckpointError, H3Error, RequestError, WorkerError
from h3serve.core.limits import Partition
from h3serve.core.settings import one_partition
from h3serve.pipeline.engine import Engine
from h3serve.pipeline.replica import Replica
from h3serve.runtime.checkpoint_identity import describe_checkpoint
from h3serve.runtime.weight_updates import Dropped, Source, Updates
from h3serve.weights.files.checkpoint_folder import SigmaShifts, open_folder

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Wanted:
    """What a caller asks for.

    `source` is a checkpoint folder; `tensors` a safetensors file of weights by our names, which belong to that
    checkpoint and then are all that is replaced. With `only_check` nothing is.
    """

    source: str
    partition: Partition | None = None  # None: the only one that is loaded
    tensors: str | None = None
    only_check: bool = False


def update_weights(engine: Engine, replica: Replica, wanted: Wanted) -> dict[str, Any]:
    """New weights for one transformer; returns what was dropped with the old ones, and the seconds.

    RequestError or CheckpointError, and nothing has changed, if it cannot be; WorkerError if it broke off.
    """
    began = time.perf_counter()
    partition = one_partition(wanted.partition, tuple(engine.denoisers), said="loaded are the weights of")
    with replica.update(asdict(wanted)):
        _check_undivided(replica)
        updates, folder = engine.updates(partition), open_folder(Path(wanted.source))
        source = updates.validate_weight_update_source(folder)
        _check_shifts(engine, partition, folder.partition(partition).shifts)
        values = None if wanted.tensors is None else _read(Path(wanted.tensors))
        if values is not None:
            updates.validate_tensors(values, source)
        replica.barrier()  # nobody writes before all have accepted
        dropped = {} if wanted.only_check else _write(engine, updates, source, values)
    return {"partition": partition, "dropped": dropped, "seconds": round(time.perf_counter() - began, 3)}


def _write(engine: Engine, updates: Updates, source: Source, values: Tensors | None) -> Dropped:
    engine.adapters[updates.partition].rebase(source.opened, is_whole=values is None)
    engine.checkpoints.pop(updates.partition, None)  # of weights that are partly new nothing is said
    dropped = updates.write(source, values)
    if values is None:
        engine.checkpoints[updates.partition] = describe_checkpoint(updates.partition, source.opened.index)
    try:
        engine.prepare()
    except (H3Error, OSError) as error:
        raise WorkerError(f"the new weights are there, but not their modulation: {error}") from error
    return dropped


def _check_undivided(replica: Replica) -> None:
    ways = replica.describe().get("ranks", {}).get("tp", 1)
    if ways > 1:
        raise RequestError("tp", ways, "weights that ranks divide are not updated; start anew with the checkpoint")


def _check_shifts(engine: Engine, partition: Partition, shifts: SigmaShifts) -> None:
    theirs, ours = (shifts.video, shifts.audio), engine.sigma_shifts[partition]
    if theirs != ours:
        raise CheckpointError(f"its sigma shifts are {theirs}, those of the served model are {ours}")


def _read(file: Path) -> Tensors:
    try:
        values: Tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from error
    return values
