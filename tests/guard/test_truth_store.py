import numpy as np
import pytest

from h3serve.core.errors import RequestError
from h3serve.guard.pcm import to_pcm
from h3serve.guard.truth_store import Budget, Clip, Facts, find, load, prune, save, whole_cases
from tests.guard.conftest import SOUND_RATE

ROOM = 10**9


@pytest.fixture
def made(clip, sound):
    pcm = to_pcm(sound, SOUND_RATE)
    facts = Facts(frames=48, made_with="test")
    return Clip(facts, {index: clip[index] for index in (0, 24, 47)}, pcm)


def test_what_is_saved_is_loaded(made, tmp_path):
    save(made, tmp_path / "cpu" / "rain", Budget(ROOM))
    back = load(tmp_path / "cpu" / "rain")
    assert back.facts == made.facts
    assert all(np.array_equal(back.frames[index], made.frames[index]) for index in (0, 24, 47))
    assert np.abs(back.pcm - made.pcm).max() < 1 / 32768


def test_official_names(made, tmp_path):
    save(made, tmp_path / "cpu" / "rain", Budget(ROOM))
    names = sorted(path.name for path in (tmp_path / "cpu" / "rain").iterdir())
    assert names == ["facts.json", "frame_0000.png", "frame_0024.png", "frame_0047.png", "sound.wav"]


def test_platform_folder_first_then_common(made, tmp_path):
    assert find(tmp_path, "cpu", "rain") is None
    save(made, tmp_path / "common" / "rain", Budget(ROOM))
    assert find(tmp_path, "cpu", "rain") == tmp_path / "common" / "rain"
    save(made, tmp_path / "cpu" / "rain", Budget(ROOM))
    assert find(tmp_path, "cpu", "rain") == tmp_path / "cpu" / "rain"
    assert find(tmp_path, "nvidia-h200", "rain") == tmp_path / "common" / "rain"


def test_over_the_cap_files_are_left_out_and_named(made, tmp_path):
    budget = Budget(150_000)  # the sound takes 128 KB, a frame about 20 KB
    save(made, tmp_path / "cpu" / "rain", budget)
    assert (tmp_path / "cpu" / "rain" / "sound.wav").exists()
    assert budget.left_out and all(name.startswith("cpu/rain/frame_") for name in budget.left_out)
    saved = sum(path.stat().st_size for path in tmp_path.rglob("*.*"))
    assert saved <= 150_000
    assert whole_cases(tmp_path) == []  # a torn clip is never taken for a ground truth


def test_damage_is_one_sentence(made, tmp_path):
    folder = tmp_path / "cpu" / "rain"
    save(made, folder, Budget(ROOM))
    (folder / "frame_0024.png").write_bytes(b"\x89PNG torn")
    with pytest.raises(RequestError, match="cpu/rain"):
        load(folder)


def test_missing_sound_is_one_sentence(made, tmp_path):
    folder = tmp_path / "cpu" / "rain"
    save(made, folder, Budget(ROOM))
    (folder / "sound.wav").unlink()
    with pytest.raises(RequestError, match="sound"):
        load(folder)


def test_old_runs_are_pruned_and_nothing_else(tmp_path):
    for name in ("run-20250101T000000", "run-20250102T000000", "run-20250103T000000", "mine"):
        (tmp_path / name).mkdir()
    assert [path.name for path in prune(tmp_path, 2)] == ["run-20250101T000000"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "run-20250102T000000", "run-20250103T000000"]
