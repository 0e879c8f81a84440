"""A layer with adapters beside the layer with the merged weight, whose deltas PEFT and LyCORIS were compared with."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from h3serve.models.kernels.float8_linear import Float8Linear, quantize
from h3serve.runtime.adapters.adapted_layer import AdaptedLayer
from h3serve.runtime.adapters.adapter_terms import DenseTerm, LowRankTerm, Term, shard_term, terms_of
from h3serve.weights.adapters.updates import (
    Difference,
    DoRA,
    LoHa,
    LoKr,
    LowRank,
    Replacement,
    Scale,
    Update,
)
from h3serve.weights.formats.entry_rows import Part

ROWS, COLUMNS, CPU = 24, 16, torch.device("cpu")
AT = ("layer.weight", 0, ROWS)
STRENGTHS = (-1.0, 0.5, 2.0)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.3


def scale(value: float) -> Scale:
    return Scale(value, 2, 2 * value, "test")


LOW = LowRank(*AT, random(2, COLUMNS, seed=1), random(ROWS, 2, seed=2), scale(0.7))
LOHA = LoHa(
    *AT,
    random(ROWS, 2, seed=3),
    random(2, COLUMNS, seed=4),
    random(ROWS, 2, seed=5),
    random(2, COLUMNS, seed=6),
    scale(2),
)
WIDE_LOHA = replace(
    LOHA,
    b1=random(ROWS, 4, seed=3),
    a1=random(4, COLUMNS, seed=4),
    b2=random(ROWS, 4, seed=5),
    a2=random(4, COLUMNS, seed=6),
)
LOKR = LoKr(*AT, random(4, 2, seed=7), (random(6, 3, seed=8), random(3, 8, seed=9)), scale(1.5))
SHUFFLED = replace(LOKR, order=torch.randperm(ROWS, generator=torch.Generator().manual_seed(0)))
UPDATES: dict[str, Update] = {
    "low rank": LOW,
    "low rank of the third part": LowRank(
        "layer.weight", 16, 8, random(3, COLUMNS, seed=10), random(8, 3, seed=11), scale(1)
    ),
    "Hadamard product, as a low rank": LOHA,
    "Hadamard product, as a matrix": WIDE_LOHA,
    "Kronecker product": LOKR,
    "Kronecker product in another order": SHUFFLED,
    "DoRA": DoRA(*AT, LOW, random(ROWS, seed=12).abs()),
    "DoRA of a Kronecker product": DoRA(*AT, SHUFFLED, random(ROWS, seed=13).abs()),
    "DoRA by column": DoRA(*AT, LOW, random(COLUMNS, seed=14).abs(), by_column=True),
    "difference": Difference(*AT, random(ROWS, COLUMNS, seed=15)),
    "difference of the bias": Difference("layer.bias", 8, 8, random(8, seed=16)),
    "replacement": Replacement(*AT, random(ROWS, COLUMNS, seed=17)),
}


def base_layer(*, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(COLUMNS, ROWS, bias=bias)
    layer.weight.data = random(ROWS, COLUMNS, seed=20)
    if bias:
        layer.bias.data = random(ROWS, seed=21)
    return layer.requires_grad_(False)


def terms(update: Update, layer: nn.Linear) -> list[Term]:
    whole = getattr(layer, update.target.removeprefix("layer."))
    return terms_of(update, lambda: whole[update.first : update.first + update.rows])


def merged(layer: nn.Linear, updates: list[tuple[Update, float]]) -> nn.Linear:
    """The layer with all deltas in its tensors, in float64."""
    double = base_layer(bias=layer.bias is not None).double()
    for update, strength in updates:
        name, rows = update.target.removeprefix("layer."), slice(update.first, update.first + update.rows)
        getattr(double, name)[rows] += strength * update.delta(getattr(layer, name)[rows]).double()
    return double


@pytest.mark.parametrize("kind", UPDATES)
@pytest.mark.parametrize("strength", STRENGTHS)
def test_each_kind(kind: str, strength: float) -> None:
    layer, x, update = base_layer(), random(10, COLUMNS, seed=30), UPDATES[kind]
    before = layer(x)
    found = [term.times(strength) for term in terms(update, layer)]
    hook = layer.register_forward_hook(AdaptedLayer(found, outputs=ROWS, device=CPU, dtype=torch.float32))
    expected = merged(layer, [(update, strength)])(x.double())
    torch.testing.assert_close(layer(x).double(), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(layer(x), before, atol=1e-2)
    hook.remove()
    assert torch.equal(layer(x), before)


def test_only_a_matrix_is_held_as_one() -> None:
    """What has small factors keeps them."""
    layer = base_layer()
    dense = {name for name, update in UPDATES.items() if any(isinstance(t, DenseTerm) for t in terms(update, layer))}
    assert dense == {"Hadamard product, as a matrix", "DoRA by column", "difference", "replacement"}


@pytest.mark.parametrize("kinds", list(itertools.combinations(list(UPDATES)[:9], 3)), ids=" + ".join)
def test_stacks_of_three(kinds: tuple[str, ...]) -> None:
    """Each delta is of the untouched base: their order does not matter."""
    layer, x = base_layer(), random(10, COLUMNS, seed=30)
    strong = [(UPDATES[kind], strength) for kind, strength in zip(kinds, STRENGTHS, strict=True)]
    expected = merged(layer, strong)(x.double())
    for order in (strong, strong[::-1], [strong[1], strong[2], strong[0]]):
        found = [term.times(strength) for update, strength in order for term in terms(update, layer)]
        hook = layer.register_forward_hook(AdaptedLayer(found, outputs=ROWS, device=CPU, dtype=torch.float32))
        torch.testing.assert_close(layer(x).double(), expected, atol=2e-5, rtol=1e-5)
        hook.remove()


@pytest.mark.parametrize("kind", UPDATES)
def test_in_16_bits(kind: str) -> None:
    """A few roundings of the output and of each product's inner sums, no more."""
    layer, x, update = base_layer().bfloat16(), random(10, COLUMNS, seed=30).bfloat16(), UPDATES[kind]
    whole = base_layer()
    whole.weight.data, whole.bias.data = layer.weight.float(), layer.bias.float()
    found = terms(update, whole)
    double = whole.double()
    name, rows = update.target.removeprefix("layer."), slice(update.first, update.first + update.rows)
    getattr(double, name)[rows] += update.delta(getattr(layer, name)[rows].float()).double()
    layer.register_forward_hook(AdaptedLayer(found, outputs=ROWS, device=CPU, dtype=torch.bfloat16))
    expected = double(x.double())
    size = expected.abs().max()
    assert (layer(x).double() - expected).abs().max() <= 4 * 2**-8 * size


@pytest.mark.parametrize("kind", UPDATES)
@pytest.mark.parametrize("quantized", [True, False], ids=["8-bit rows", "plain rows"])
def test_on_layers_of_8_bits(kind: str, quantized: bool) -> None:
    """The adapter adds what it adds to the numbers that the 8-bit layer is given; the layer itself is untouched."""
    plain, x, update = base_layer(), random(10, COLUMNS, seed=30), UPDATES[kind]
    layer = Float8Linear(plain, torch.float32)
    layer.set_weight(plain.weight)
    given = quantize(x) if quantized else x
    before = layer(given)
    layer.register_forward_hook(AdaptedLayer(terms(update, plain), outputs=ROWS, device=CPU, dtype=torch.float32))
    change = layer(given) - before
    rows = slice(update.first, update.first + update.rows)
    expected = torch.zeros(10, ROWS)
    delta = update.delta(getattr(plain, update.target.removeprefix("layer."))[rows])
    numbers = given.float() if quantized else x
    expected[:, rows] = delta if delta.dim() == 1 else F.linear(numbers, delta)
    # DoRA's gain is of the output that the 8-bit layer has
    torch.testing.assert_close(change, expected, atol=0.15 if isinstance(update, DoRA) else 1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", UPDATES)
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("groups", [1, 3])
def test_ranks_that_divide_outputs(kind: str, count: int, groups: int) -> None:
    """Every rank computes its rows of [q; k; v]: together they are the whole layer's."""
    if ROWS % (count * groups):
        pytest.skip("rows do not divide")
    layer, x = base_layer(), random(10, COLUMNS, seed=30)
    whole = terms(UPDATES[kind], layer)
    expected = merged(layer, [(UPDATES[kind], 1.0)])(x.double())
    for index in range(count):
        part = Part(0, index, count, groups)
        held = part.positions(ROWS)
        mine = nn.Linear(COLUMNS, len(held)).requires_grad_(False)
        mine.weight.data, mine.bias.data = layer.weight[held], layer.bias[held]
        own = [t for term in whole if (t := shard_term(term, part, ROWS)) is not None]
        mine.register_forward_hook(AdaptedLayer(own, outputs=len(held), device=CPU, dtype=torch.float32))
        torch.testing.assert_close(mine(x).double(), expected[:, held], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in UPDATES if "bias" not in kind])
def test_ranks_that_divide_inputs(kind: str) -> None:
    """Products of the inputs that a rank has are summed over ranks, gains and offsets are not."""
    layer, x, count = base_layer(bias=False), random(10, COLUMNS, seed=30), 4
    whole = terms(UPDATES[kind], layer)
    expected = merged(layer, [(UPDATES[kind], 1.0)])(x.double())
    parts = [Part(1, index, count) for index in range(count)]
    products: list[list[torch.Tensor]] = []
    for part in parts:  # what each rank would send
        sent: list[torch.Tensor] = []

        def note(product: torch.Tensor, sent: list[torch.Tensor] = sent) -> torch.Tensor:
            sent.append(product)
            return product

        own = [t for term in whole if (t := shard_term(term, part, ROWS)) is not None]
        adapted = AdaptedLayer(own, outputs=ROWS, device=CPU, dtype=torch.float32, total=note)
        adapted(layer, (x[:, part.positions(COLUMNS)],), torch.zeros(10, ROWS))
        products.append(sent)
    received = iter([sum(pieces) for pieces in zip(*products, strict=True)])
    own = [t for term in whole if (t := shard_term(term, parts[1], ROWS)) is not None]
    adapted = AdaptedLayer(own, outputs=ROWS, device=CPU, dtype=torch.float32, total=lambda _: next(received))
    out = adapted(layer, (x[:, parts[1].positions(COLUMNS)],), layer(x))
    torch.testing.assert_close(out.double(), expected, atol=2e-5, rtol=1e-5)


def test_three_of_one_place_are_one_product() -> None:
    """Their A lie together, so that the input is read once."""
    layer = base_layer()
    adapted = AdaptedLayer(3 * terms(LOW, layer), outputs=ROWS, device=CPU, dtype=torch.float32)
    assert adapted._a is not None and adapted._a.shape == (6, COLUMNS)
    assert [b.shape for _, _, b in adapted._b] == [(ROWS, 6)]
    assert isinstance(terms(LOW, layer)[0], LowRankTerm)
