"""How many ways a replica is divided, and which way is chosen: arithmetic only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from h3serve.core.errors import CapacityError, RequestError
from h3serve.core.estimate_memory import SLAB_BYTES
from h3serve.core.estimate_work import GIB, RELEASED_MODEL, ModelSize, step_bytes, weight_bytes
from h3serve.core.settings import EncoderShare

LONGEST_ROWS = 109_364  # 15 s at 1344x768: what a replica should have room for


@dataclass(frozen=True)
class Shape:
    """`ulysses` parts of the sequence times `tp` parts of every linear."""

    ulysses: int = 1
    tp: int = 1

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.ulysses * self.tp

    def tp_groups(self) -> list[list[int]]:
        """Neighbours: they talk most, twice per block."""
        return [list(range(start, start + self.tp)) for start in range(0, self.size, self.tp)]

    def ulysses_groups(self) -> list[list[int]]:
        """Ranks with the same slice of the linears."""
        return [list(range(start, self.size, self.tp)) for start in range(self.tp)]


@dataclass(frozen=True)
class ShapeChoice:
    """A shape and, in a sentence, why this one."""

    shape: Shape
    reason: str


def choose_shape(
    gpus: int,
    ulysses: int | None = None,
    tp: int | None = None,
    *,
    heads: int,
    free: int | None,
    needed: Callable[[Shape], int] = lambda shape: bytes_per_rank(shape),
) -> ShapeChoice:
    """The shape of a replica on `gpus` devices; what is given is kept, the rest follows.

    `free` are bytes of one device, None where memory is no concern. Of several shapes that fit, the one with
    most Ulysses is taken: it exchanges least. RequestError for what cannot be divided, CapacityError if
    nothing fits.
    """
    if gpus < 1:
        raise RequestError("gpus", gpus, "1 or more")
    for name, value in (("ulysses", ulysses), ("tp", tp)):
        if value is not None and (value < 1 or gpus % value):
            raise RequestError(name, value, f"it must divide the {gpus} GPUs")
    if ulysses is not None and tp is not None and ulysses * tp != gpus:
        raise RequestError("ulysses", ulysses, f"ulysses times tp ({tp}) must be the {gpus} GPUs")
    shapes = [Shape(gpus // t, t) for t in range(1, gpus + 1) if gpus % t == 0 and heads % gpus == 0]
    shapes = [s for s in shapes if ulysses in (None, s.ulysses) and tp in (None, s.tp)]
    if not shapes:
        raise RequestError("gpus", gpus, f"the {heads} attention heads cannot be divided by it")
    if ulysses is not None or tp is not None or len(shapes) == 1:
        return ShapeChoice(shapes[0], "as asked" if gpus > 1 else "one GPU")
    if free is None:
        return ShapeChoice(shapes[0], "Ulysses exchanges least, and memory is no concern here")
    for shape in shapes:
        if needed(shape) <= free:
            return ShapeChoice(shape, _why(shape, shapes, free, needed))
    last = shapes[-1]
    raise CapacityError(
        f"the model needs {_gib(needed(last))} on each of {gpus} GPUs even with tp {last.tp}; {_gib(free)} are free"
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


def _why(shape: Shape, shapes: list[Shape], free: int, needed: Callable[[Shape], int]) -> str:
    here = f"tp {shape.tp} needs {_gib(needed(shape))} of {_gib(free)} free on each GPU"
    if shape is shapes[0]:
        return f"{here}, and Ulysses exchanges least"
    before = shapes[shapes.index(shape) - 1]
    return f"tp {before.tp} would need {_gib(needed(before))}; {here}"


def encoder_parts(wanted: EncoderShare, ranks: int, *, heads: int, float8: bool = False) -> int:
    """In how many parts `ranks` ranks hold the text encoder, which has `heads` key-value heads: all of them, or 1.

    RequestError if it has to be sharded and cannot be.
    """
    obstacle = ""
    if ranks == 1:
        obstacle = "one GPU holds it whole"
    elif float8:
        obstacle = "8-bit layers are not divided"
    elif heads % ranks:
        obstacle = f"its {heads} key-value heads cannot be divided by {ranks}"
    if wanted == "sharded" and obstacle:
        raise RequestError("text_encoder", wanted, f"auto or replicated: {obstacle}")
    return 1 if obstacle or wanted == "replicated" else ranks


def bytes_per_rank(
    shape: Shape, model: ModelSize = RELEASED_MODEL, *, rows: int = LONGEST_ROWS, encoder: int | None = None
) -> int:
    """Device bytes of one rank, everything resident in bfloat16, at the longest video; `encoder` parts or all ranks."""
    weights = weight_bytes(model)
    networks = weights["transformer"] // shape.tp + weights["text_encoder"] // (encoder or shape.size) + weights["vaes"]
    slice_of_model = replace(model, inner=model.inner // shape.tp, ffn=model.ffn // shape.tp)
    work = step_bytes(-(-rows // shape.ulysses), slice_of_model) + 4 * rows * model.hidden  # the sequence, twice
    return networks + SLAB_BYTES + work
