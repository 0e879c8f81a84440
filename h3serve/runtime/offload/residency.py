"""Which placement each network gets: arithmetic from sizes, the plan and the machine, and it can be shown.

Candidates go from quickest to most frugal. The first one whose every stage fits on the device, and leaves room for
what allocators waste, is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from h3serve.core.errors import RequestError
from h3serve.core.estimate_memory import Capacity, Tiles, Work, gib, too_much
from h3serve.core.estimate_work import GIB
from h3serve.core.settings import Residency, one_of
from h3serve.runtime.machine import Machine
from h3serve.runtime.offload.placement import Mode

MARGIN = 0.02  # of the device: what allocators round up
MARGIN_BYTES = 3 * GIB // 4  # CUDA context and library workspaces
HOST_SHARE = 0.8  # of the free host memory that weights may take
FRAGMENTS = 3 * GIB  # of a nearly full device: what lies unusable between tensors that come and go (2.2 seen)
DEPTH = 1  # blocks sent for ahead

VAES = ("video_vae", "audio_vae")
STAGES: Mapping[str, tuple[str, ...]] = {  # networks that a stage needs on the device
    "encode text": ("text_encoder",),
    "encode conditions": VAES,
    "denoise": ("transformer",),
    "decode": VAES,
}
AWAY: Mapping[str, Mode] = {"video_vae": "offload", "audio_vae": "offload"}
# Modes of networks; what is not named is resident. The encoder runs once a request: streaming it moves as many
# bytes as offloading it, beside the computing.
CANDIDATES: tuple[Mapping[str, Mode], ...] = (
    {},
    {"text_encoder": "stream"},
    {"text_encoder": "stream", **AWAY},
    {"text_encoder": "stream", "transformer": "offload", **AWAY},
    {"text_encoder": "stream", "transformer": "stream", **AWAY},
)
ALLOWED: Mapping[str, tuple[Mapping[str, Mode], ...]] = {
    "auto": CANDIDATES,
    "resident": CANDIDATES[:1],
    "offload": ({"text_encoder": "offload", "transformer": "offload", **AWAY},),
    "stream": CANDIDATES[-1:],
}


@dataclass(frozen=True)
class Size:
    """Bytes of one network: all but its blocks, one block, and how many blocks; `copies` for both partitions."""

    rest: int
    block: int = 0
    blocks: int = 0
    copies: int = 1

    @property
    def total(self) -> int:
        """One copy, whole."""
        return self.rest + self.block * self.blocks


# The released model in bfloat16, without the AdaLN projections of its blocks.
RELEASED_SIZES: Mapping[str, Size] = {
    "transformer": Size(1_723_246_080, 770_725_376, 50),
    "text_encoder": Size(2_746_358_240, 975_196_672, 50),
    "video_vae": Size(746_784_816, 134_303_744, 36),
    "audio_vae": Size(605_306_340),
}
# The same with the linear layers of transformer and text encoder in 8 bits.
RELEASED_SIZES_8_BITS: Mapping[str, Size] = {
    **RELEASED_SIZES,
    "transformer": Size(1_723_246_080, 385_373_696, 50),
    "text_encoder": Size(2_746_358_240, 487_608_832, 50),
}


@dataclass(frozen=True)
class Choice:
    """Modes, how many streamed blocks stay, where the host side is, and the arithmetic behind it."""

    modes: Mapping[str, Mode]
    resident_blocks: int
    in_files: bool  # host side: the mapped files (shared) instead of memory of this process
    peaks: Mapping[str, int]  # device bytes per stage
    budget: int
    host_bytes: int
    machine: Machine
    sizes: Mapping[str, Size] = field(repr=False)

    @property
    def peak(self) -> int:
        """Predicted runtime peak on the device."""
        return max(self.peaks.values())

    def describe(self) -> dict[str, Any]:
        """The same as JSON-ready values, in bytes."""
        return {
            "modes": dict(self.modes),
            "resident_blocks": self.resident_blocks,
            "host_side": "files" if self.in_files else "memory",
            "peak_bytes": dict(self.peaks),
            "budget_bytes": self.budget,
            "host_bytes": self.host_bytes,
        }

    def lines(self) -> list[str]:
        """The arithmetic, for people."""
        modes = ", ".join(f"{name} {mode}" for name, mode in self.modes.items())
        streams = "stream" in self.modes.values()
        where = "left in their files" if self.in_files else "in host memory"
        host = f"{gib(self.host_bytes)} {where}, {gib(self.machine.host_free)} free"
        return [
            f"placement   {modes}" + (f"; {self.resident_blocks} transformer blocks stay" if streams else ""),
            "weights     " + ", ".join(f"{name} {gib(size.total)}" for name, size in self.sizes.items()),
            "device      " + ", ".join(f"{stage} {gib(peak)}" for stage, peak in self.peaks.items()),
            f"            peak {gib(self.peak)} of {gib(self.budget)} usable ({gib(self.machine.device_free)} free)",
            f"host        {host}",
        ]


def capacity_of(choice: Choice, tiles: Tiles) -> Capacity:
    """What the weights as they have been placed leave for requests; blocks that stay give way."""
    nothing = Work(0, dict.fromkeys(STAGES, 0))
    held = {
        stage: _peak(stage, users, choice.modes, choice.sizes, nothing, choice.in_files)
        for stage, users in STAGES.items()
    }
    return Capacity(held, choice.budget, choice.machine.device_free, tiles)


def staying_beside(choice: Choice, work: Work) -> int:
    """How many blocks of a streamed transformer may stay on the device beside this work."""
    if choice.modes["transformer"] != "stream":
        return 0
    held = _peak("denoise", STAGES["denoise"], choice.modes, choice.sizes, work, choice.in_files)
    size = choice.sizes["transformer"]
    return max(0, min(size.blocks - DEPTH - 1, (choice.budget - FRAGMENTS - held) // max(1, size.block)))


def choose(residency: str, sizes: Mapping[str, Size], work: Work, machine: Machine) -> Choice:
    """The quickest placement that fits.

    RequestError for an unknown residency, CapacityError with the numbers if nothing allowed fits.
    """
    if residency not in get_args(Residency):
        raise RequestError("residency", residency, one_of(Residency))
    budget = int(machine.device_free - MARGIN * machine.device_bytes) - MARGIN_BYTES
    choices = [_choice(modes, sizes, work, machine, budget) for modes in ALLOWED[residency]]
    fitting = [choice for choice in choices if choice.peak <= budget]
    if fitting:
        return next((choice for choice in fitting if choice.peak + FRAGMENTS <= budget), fitting[-1])
    nearest = min(choices, key=lambda choice: choice.peak)
    stage = max(nearest.peaks, key=lambda name: nearest.peaks[name])
    frugal = "" if residency in ("auto", "stream") else "; --residency stream needs least"
    raise too_much(stage, nearest.peak, usable=budget, free=machine.device_free, advice=frugal)


def _choice(modes: Mapping[str, Mode], sizes: Mapping[str, Size], work: Work, machine: Machine, budget: int) -> Choice:
    full: dict[str, Mode] = {name: modes.get(name, "resident") for name in sizes}
    host = sum(size.total * size.copies for name, size in sizes.items() if full[name] != "resident")
    in_files = host > HOST_SHARE * machine.host_free
    peaks = {stage: _peak(stage, users, full, sizes, work, in_files) for stage, users in STAGES.items()}
    choice = Choice(full, 0, in_files, peaks, budget, host, machine, sizes)
    staying = staying_beside(choice, work)
    peaks["denoise"] += staying * sizes["transformer"].block
    return replace(choice, resident_blocks=staying)


def _peak(
    stage: str,
    users: Sequence[str],
    modes: Mapping[str, Mode],
    sizes: Mapping[str, Size],
    work: Work,
    in_files: bool,
) -> int:
    """Device bytes of one stage: all that is resident, the stage's visitors, the slab, and the work itself."""
    total = work.slab + work.stages[stage]
    for name, size in sizes.items():
        landing = max(size.rest, size.block) if in_files else 0  # stored bytes on the device, before they are in order
        if modes[name] == "resident":
            total += size.total * size.copies
        elif name in users and modes[name] == "offload":
            total += size.total + landing
        elif name in users:
            total += size.rest + min(size.blocks, DEPTH + 1) * size.block + landing
    return total
