"""Every tier gives the resident projection's bits; what is kept is not made again."""

from pathlib import Path

import numpy as np
import pytest
import torch

from h3serve.core.errors import CapacityError, CheckpointError
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.runtime.adaln import adaln_cache, rebuild
from h3serve.runtime.adaln.modulation_tables import Direct
from tests.runtime.stores import write_tiny
from tests.runtime.tiers import check, raising, schedule, tiers

T2VA, FL2VA, OTHER = schedule(6), schedule(5, levels=(0.999,)), schedule(6, shift=5.0)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Denoiser]:
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, write_tiny(folder, dtype=request.param)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Denoiser]:
    folder = tmp_path_factory.mktemp("plain")
    return folder, write_tiny(folder)


def test_every_tier_gives_the_resident_bits(
    checkpoint: tuple[Path, Denoiser], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = checkpoint
    front = tiers(folder, made, sidecars=tmp_path)
    with front.schedule(T2VA) as ready:  # computed anew
        check(ready, T2VA, made.modulation)
    monkeypatch.setattr(adaln_cache, "rebuild", raising("the checkpoint was read again"))
    with front.schedule(T2VA) as ready:  # the slab
        check(ready, T2VA, made.modulation)
    front.slab.clear()
    with front.schedule(T2VA) as ready:  # host pages
        check(ready, T2VA, made.modulation)
    again = tiers(folder, made, sidecars=tmp_path)
    with again.schedule(T2VA) as ready:  # the file
        check(ready, T2VA, made.modulation)
    keys = len({step.tobytes() for step in T2VA})
    stats = front.stats()
    assert (stats["rebuild"]["hits"], stats["pages"]["hits"], stats["slab"]["hits"]) == (keys, keys, keys)
    assert again.stats()["sidecar"]["hits"] == keys and again.stats()["rebuild"]["hits"] == 0


def test_every_tier_inside_inference_mode(plain: tuple[Path, Denoiser], tmp_path: Path) -> None:
    folder, made = plain
    with torch.inference_mode():
        for slots in (2, 40):  # growing, or large enough
            front = tiers(folder, made, slots=slots, sidecars=tmp_path)
            with front.schedule(FL2VA) as ready:
                check(ready, FL2VA, made.modulation)
            front.slab.clear()
            front.prepare(FL2VA)
    assert front.stats()["sidecar"]["hits"] > 0
    with front.schedule(T2VA) as ready:  # and outside again, into the pages that were made inside
        check(ready, T2VA, made.modulation)
    front.pages.clear()
    front.slab.clear()
    with front.schedule(FL2VA) as ready:
        check(ready, FL2VA, made.modulation)


def test_the_diffusers_layout_gives_the_same_bits(tmp_path: Path) -> None:
    made = write_tiny(tmp_path, "diffusers")
    with tiers(tmp_path, made, layout="diffusers").schedule(FL2VA) as ready:
        check(ready, FL2VA, made.modulation)


def test_one_pass_reads_every_projection_once_for_any_mix(plain: tuple[Path, Denoiser]) -> None:
    folder, made = plain
    front = tiers(folder, made)
    mix = [*T2VA, *FL2VA, *OTHER]
    with front.schedule(mix) as ready:
        check(ready, mix, made.modulation)
    projections = sum(p.nbytes for block in made.modulation.blocks for p in block.parameters())
    assert front.stats()["rebuild"]["bytes"] == projections


def test_alternating_schedules_never_read_the_checkpoint_again(
    plain: tuple[Path, Denoiser], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = plain
    front = tiers(folder, made, slots=11, limit=14)  # room for either, not for both
    for steps in (T2VA, OTHER):
        front.prepare(steps)
    monkeypatch.setattr(adaln_cache, "rebuild", raising("the checkpoint was read again"))
    for steps in (T2VA, OTHER) * 3:
        with front.schedule(steps) as ready:
            check(ready, steps, made.modulation)
    stats = front.stats()
    assert stats["slab"]["evictions"] > 0 and stats["pages"]["hits"] > 0


def test_what_the_slab_already_has_is_not_brought_again(plain: tuple[Path, Denoiser]) -> None:
    folder, made = plain
    front = tiers(folder, made)
    front.prepare(T2VA)
    before = front.stats()["rebuild"]["hits"]
    front.prepare([*T2VA, schedule(7)[1]])
    assert front.stats()["rebuild"]["hits"] == before + 1


def test_more_than_the_slab_may_hold_is_refused_before_anything_is_computed(
    plain: tuple[Path, Denoiser], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = plain
    front = tiers(folder, made, slots=4, limit=20)
    monkeypatch.setattr(adaln_cache, "rebuild", raising("something was computed"))
    with pytest.raises(CapacityError, match="may hold 20"), front.schedule(schedule(30)):
        pass


def test_a_failing_rebuild_leaves_the_tiers_as_they_were(
    plain: tuple[Path, Denoiser], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = plain
    front = tiers(folder, made)
    front.prepare(T2VA)

    def torn(*args: object, **kwargs: object) -> int:
        rebuild.rebuild(*args, **kwargs)  # type: ignore[arg-type]
        raise CheckpointError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(adaln_cache, "rebuild", torn)
        with pytest.raises(CheckpointError, match="gone"), front.schedule(OTHER):
            pass
    with front.schedule(T2VA) as ready:
        check(ready, T2VA, made.modulation)
    with front.schedule(OTHER) as ready:
        check(ready, OTHER, made.modulation)


def test_a_corrupt_sidecar_is_made_anew(plain: tuple[Path, Denoiser], tmp_path: Path) -> None:
    folder, made = plain
    tiers(folder, made, sidecars=tmp_path).prepare(T2VA)
    (file,) = tmp_path.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-50] ^= 255  # tables lie at the end of the file
    file.write_bytes(data)
    for expected in ("rebuild", "sidecar"):
        front = tiers(folder, made, sidecars=tmp_path)
        with front.schedule(T2VA) as ready:
            check(ready, T2VA, made.modulation)
        assert front.stats()[expected]["hits"] > 0
    assert front.stats()["rebuild"]["hits"] == 0


def test_a_sidecar_of_another_checkpoint_is_not_used(plain: tuple[Path, Denoiser], tmp_path: Path) -> None:
    tiers(*plain, sidecars=tmp_path / "tables").prepare(T2VA)
    made = write_tiny(tmp_path / "other", seed=5)
    front = tiers(tmp_path / "other", made, sidecars=tmp_path / "tables", writes=False)
    with front.schedule(T2VA) as ready:
        check(ready, T2VA, made.modulation)
    assert front.stats()["sidecar"]["hits"] == 0


def test_a_full_disk_does_not_fail_the_request(plain: tuple[Path, Denoiser], tmp_path: Path) -> None:
    folder, made = plain
    (tmp_path / "file").write_text("in the way")
    front = tiers(folder, made, sidecars=tmp_path / "file" / "tables")
    with front.schedule(T2VA) as ready:
        check(ready, T2VA, made.modulation)


def test_without_pages_and_files_it_still_works(plain: tuple[Path, Denoiser]) -> None:
    folder, made = plain
    front = tiers(folder, made, pages=0)
    for _ in range(2):
        with front.schedule(FL2VA) as ready:
            check(ready, FL2VA, made.modulation)
    assert front.pages.skips == 1


def test_the_tables_stay_where_they_are(plain: tuple[Path, Denoiser]) -> None:
    front = tiers(*plain)
    with front.schedule(T2VA) as first:
        pass
    with front.schedule(OTHER) as second:
        pass
    assert first.modulation.blocks.data_ptr() == second.modulation.blocks.data_ptr()


def test_no_projection_is_left_in_memory(plain: tuple[Path, Denoiser]) -> None:
    front = tiers(*plain)
    front.prepare(T2VA)
    assert all(p.is_meta for n, p in front._network.named_parameters() if n.startswith("blocks."))


def test_tables_straight_from_a_resident_network(plain: tuple[Path, Denoiser]) -> None:
    _, made = plain
    with Direct(made.modulation).schedule([*FL2VA, *FL2VA[:2]]) as ready:
        check(ready, [*FL2VA, *FL2VA[:2]], made.modulation)


def test_after_other_weights_nothing_old_is_used(plain: tuple[Path, Denoiser], tmp_path: Path) -> None:
    front = tiers(*plain)
    front.prepare(T2VA)
    made = write_tiny(tmp_path, seed=9)
    fresh = tiers(tmp_path, made)
    front._network = fresh._network
    front.refresh(fresh.projections, None)
    with front.schedule(T2VA) as ready:
        check(ready, T2VA, made.modulation)
    assert np.isfinite(front.stats()["rebuild"]["seconds"])
