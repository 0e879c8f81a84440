"""Which placement fits: released sizes against cards that people have."""

from dataclasses import replace

import pytest
import torch

from h3serve.core.errors import CapacityError, RequestError
from h3serve.core.estimate_memory import Tiles, work_of
from h3serve.core.estimate_work import GIB
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.models.kernels.float8_linear import use_float8
from h3serve.models.kernels.float8_rows import FLOAT8
from h3serve.models.transformer.denoiser import is_projection
from h3serve.models.video_vae.tile_batches import SHARE, fit_tiles, tiles_of
from h3serve.models.video_vae.video_vae import VideoVAE
from h3serve.runtime.machine import Machine
from h3serve.runtime.offload.placement import BLOCKS, split
from h3serve.runtime.offload.policy import (
    FRAGMENTS,
    RELEASED_SIZES,
    RELEASED_SIZES_8_BITS,
    STAGES,
    capacity_of,
    choose,
    choose_on,
    released,
    resident_beside,
    tiles_for,
)
from h3serve.weights.formats.components import RECIPES, build_on_meta
from h3serve.weights.formats.released_sizes import RELEASED

TILES = Tiles(GIB, GIB // 14, GIB // 2)


def plan(seconds: float = 5.0) -> Plan:
    body = {"task": "t2va", "prompt": "a lighthouse", "target": {"short_edge": 768, "duration_seconds": seconds}}
    return Plan.resolve(parse_request(body))


def machine(device: float, host: float) -> Machine:
    return Machine(int(device * GIB), int(device * GIB), int(host * GIB), int(host * GIB))


WORK = work_of(plan(), tiles=TILES)


@pytest.mark.parametrize("float8", [False, True])
@pytest.mark.parametrize("name", list(RELEASED))
def test_released_sizes_are_those_of_the_networks(name: str, float8: bool) -> None:
    recipe, expected = RECIPES[name], (RELEASED_SIZES_8_BITS if float8 else RELEASED_SIZES)[name]
    module = build_on_meta(recipe, recipe.read_config(dict(RELEASED[name])))
    if float8:
        use_float8(module, recipe.float8_linears, torch.bfloat16)
    values = {
        key: value.numel() * (value.dtype if value.dtype == FLOAT8 else recipe.dtype_of(key, torch.bfloat16)).itemsize
        for key, value in module.state_dict().items()
        if not is_projection(key)
    }
    rest, *groups = split(values, name, expected.blocks)
    assert sum(rest.values()) == expected.rest
    assert {sum(group.values()) for group in groups} == ({expected.block} if name in BLOCKS else set())


def test_8_bits_halve_the_memory() -> None:
    """DiT and encoder resident with a request of 5 s: 75 GiB are enough."""
    choice = choose("resident", RELEASED_SIZES_8_BITS, WORK, machine(75, 64))
    assert choice.peak < 60 * GIB < choose("resident", RELEASED_SIZES, WORK, machine(139, 64)).peak - 30 * GIB


def test_8_bits_cannot_stay_in_their_files() -> None:
    with pytest.raises(
        CapacityError, match=r"8-bit weights .* kept in host memory: \d+\.\d+ GiB are needed, 16.00 GiB"
    ):
        choose_on(machine(24, 16), "stream", plan(), released(float8=True), fused=False, float8=True)
    assert not choose_on(machine(24, 128), "stream", plan(), released(float8=True), fused=False, float8=True).in_files


@pytest.mark.parametrize(
    ("device", "host", "expected"),
    [
        (139, 128, {"text_encoder": "resident", "transformer": "resident", "video_vae": "resident"}),
        (94, 128, {"text_encoder": "stream", "transformer": "resident", "video_vae": "resident"}),
        (79, 128, {"text_encoder": "stream", "transformer": "resident", "video_vae": "resident"}),
        (48, 200, {"text_encoder": "stream", "transformer": "offload", "video_vae": "offload"}),
        (24, 200, {"text_encoder": "stream", "transformer": "stream", "video_vae": "offload"}),
    ],
)
def test_auto_takes_the_quickest_that_fits(device: float, host: float, expected: dict[str, str]) -> None:
    choice = choose("auto", RELEASED_SIZES, WORK, machine(device, host))
    assert {name: choice.modes[name] for name in expected} == expected
    assert choice.peak <= choice.budget < device * GIB


def test_blocks_stay_where_there_is_room() -> None:
    small, large = (choose("stream", RELEASED_SIZES, WORK, machine(gib, 200)) for gib in (24, 32))
    assert 0 < small.resident_blocks < large.resident_blocks
    assert FRAGMENTS <= large.budget - large.peaks["denoise"] < FRAGMENTS + RELEASED_SIZES["transformer"].block


@pytest.mark.parametrize("gib", [1, 24, 141])
def test_tiles_are_counted_as_they_will_be_batched(gib: int) -> None:
    recipe = RECIPES["video_vae"]
    vae = build_on_meta(recipe, recipe.read_config(dict(RELEASED["video_vae"])))
    assert isinstance(vae, VideoVAE)
    fit_tiles(vae, gib * GIB // SHARE)
    assert tiles_for(vae.config, gib * GIB, fused=False) == tiles_of(vae)


def test_little_host_memory_leaves_weights_in_their_files() -> None:
    assert not choose("stream", RELEASED_SIZES, WORK, machine(24, 128)).in_files
    assert choose("stream", RELEASED_SIZES, WORK, machine(24, 64)).in_files


def test_two_partitions_need_room_for_two_transformers() -> None:
    both = {**RELEASED_SIZES, "transformer": replace(RELEASED_SIZES["transformer"], copies=2)}
    one, two = (choose("resident", sizes, WORK, machine(200, 200)).peak for sizes in (RELEASED_SIZES, both))
    assert two - one == RELEASED_SIZES["transformer"].total


def test_what_cannot_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(CapacityError, match=r"needs 9\d\.\d+ GiB on the device, .* --residency stream needs least"):
        choose("resident", RELEASED_SIZES, WORK, machine(80, 128))
    long = work_of(plan(15.0), tiles=TILES)
    with pytest.raises(CapacityError, match="denoise needs .* a shorter or smaller video"):
        choose("auto", RELEASED_SIZES, long, machine(10, 128))


@pytest.mark.parametrize("gib", [24, 48, 94, 139])
def test_capacity_is_what_the_choice_was_made_from(gib: int) -> None:
    choice = choose("auto", RELEASED_SIZES, WORK, machine(gib, 200))
    capacity = capacity_of(choice, TILES)
    needed = {stage: held + WORK.slab + WORK.stages[stage] for stage, held in capacity.held.items()}
    staying = {"denoise": choice.resident_blocks * choice.sizes["transformer"].block}
    assert {stage: value + staying.get(stage, 0) for stage, value in needed.items()} == choice.peaks
    capacity.check(plan())
    capacity = replace(capacity, usable=max(needed.values()) - 1)
    with pytest.raises(CapacityError, match=rf"needs {max(needed.values()) / GIB:.2f} GiB .* \({gib}.00 GiB free"):
        capacity.check(plan())


def test_blocks_that_stay_give_way_to_a_longer_clip() -> None:
    choice = choose("stream", RELEASED_SIZES, WORK, machine(24, 200))
    lengths = [resident_beside(choice, work_of(plan(seconds), tiles=TILES)) for seconds in (4.0, 5.0, 10.0, 15.0)]
    assert lengths == sorted(lengths, reverse=True) and lengths[1] == choice.resident_blocks > lengths[2] > 0
    capacity_of(choice, TILES).check(plan(15.0))
    assert resident_beside(choose("resident", RELEASED_SIZES, WORK, machine(139, 200)), WORK) == 0


def test_an_unknown_residency() -> None:
    with pytest.raises(RequestError, match="auto, resident, offload or stream"):
        choose("fast", RELEASED_SIZES, WORK, machine(80, 128))


def test_the_arithmetic_is_shown() -> None:
    choice = choose("auto", RELEASED_SIZES, WORK, machine(24, 200))
    text = "\n".join(choice.lines())
    assert "transformer stream" in text and "37.49 GiB" in text and all(stage in text for stage in STAGES)
    assert f"peak {choice.peak / GIB:.2f} GiB of {choice.budget / GIB:.2f} GiB" in text


def test_steps_enlarge_the_slab_beyond_its_first_size() -> None:
    assert WORK.slab == 100 * 4_849_152 * 2
    assert work_of(replace(plan(), steps=10), tiles=TILES).slab == WORK.slab
    assert work_of(replace(plan(), steps=100), tiles=TILES).slab == 2 * WORK.slab
