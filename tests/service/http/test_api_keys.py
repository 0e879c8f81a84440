import stat
from pathlib import Path

import pytest

from h3serve.core.errors import H3Error
from h3serve.service.http.api_keys import BadKey, Caller, KeyRing, add_key, hash_key, read_keys


def test_a_key_is_shown_once_and_kept_as_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    ann, bob = add_key(path, "ann"), add_key(path, "bob")
    text = path.read_text()
    assert ann not in text and bob not in text and hash_key(ann) in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ring = KeyRing(read_keys(path))
    assert ring.caller(f"Bearer {ann}").name == "ann" and ring.caller(f"bearer {bob}").name == "bob"
    for wrong in (None, "", "Bearer", "Bearer ", f"Basic {ann}", f"Bearer {ann}x", f"Bearer {hash_key(ann)}"):
        with pytest.raises(BadKey):
            ring.caller(wrong)
    with pytest.raises(H3Error, match="not in"):
        add_key(path, "ann")


def test_without_keys_everybody_may_call() -> None:
    ring = KeyRing(anybody=Caller(max_priority=3))
    assert ring.is_open and ring.caller(None).max_priority == 3 and ring.caller("Bearer x").name == ""


def test_only_a_key_that_was_made_so_is_an_admins(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    plain, admin = add_key(path, "ann"), add_key(path, "ops", is_admin=True)
    ring = KeyRing(read_keys(path))
    assert ring.has_admin and ring.caller(f"Bearer {admin}").is_admin
    assert not ring.caller(f"Bearer {plain}").is_admin
    assert not KeyRing().has_admin and not KeyRing().caller(None).is_admin


def test_running_limits() -> None:
    ring = KeyRing((Caller("ann", "1", max_running=2), Caller("bob", "2")))
    assert ring.max_running == {"ann": 2}


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[1]", '[{"name": "a", "more": 1}]', '[{"name": "a"}, {"name": "a"}]']
)
def test_a_broken_key_file_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.json").write_text(text)
    with pytest.raises(H3Error, match=r"keys\.json"):
        read_keys(tmp_path / "keys.json")
