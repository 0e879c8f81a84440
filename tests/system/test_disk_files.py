"""Files that are whole or not there, and caches within their bound."""

import os
from pathlib import Path

import pytest

from h3serve.system.disk_files import trim, whole_file


def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    with whole_file(target) as part:
        part.write_text("new")
        assert not target.exists() and part.parent == tmp_path
    assert target.read_text() == "new" and list(tmp_path.iterdir()) == [target]


def test_a_failure_leaves_the_older_file_alone(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "a.json") as part:
        part.write_text("half")
        raise KeyboardInterrupt
    assert (tmp_path / "a.json").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_a_folder_too(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), whole_file(tmp_path / "frames") as part:
        part.unlink()
        part.mkdir()
        (part / "0.png").write_bytes(b"0")
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []


def test_rights(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        for name, mode in (("usual", None), ("private", 0o600)):
            with whole_file(tmp_path / name, mode=mode):
                pass
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("usual", "private")] == [0o640, 0o600]


@pytest.mark.parametrize("sync", [True, False])
def test_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append([p.name for p in tmp_path.iterdir()]))
    with whole_file(tmp_path / "a", sync=sync) as part:
        part.write_text("a")
    assert seen == ([[part.name]] if sync else [])


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    ages = {"b": 1, "c": 2, "a": 3}  # by name another one would go
    for name, age in ages.items():
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (age, age))
    trim(tmp_path.iterdir(), 30)
    assert len(list(tmp_path.iterdir())) == 3
    trim([*tmp_path.iterdir(), tmp_path / "gone"], 20)
    assert {p.name for p in tmp_path.iterdir()} == {"c", "a"}
    trim(tmp_path.iterdir(), 10, keep=tmp_path / "c")
    assert {p.name for p in tmp_path.iterdir()} == {"c"}
