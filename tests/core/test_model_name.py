from pathlib import Path

import pytest

from h3serve.core.errors import CheckpointError
from h3serve.core.model_name import check_model, is_hub_id


@pytest.mark.parametrize("text", ["owner/name", "MiniMaxAI/MiniMax-H3", "a.b/c_d", "city96/H3-gguf"])
def test_hub_ids(text: str) -> None:
    assert is_hub_id(text)


@pytest.mark.parametrize("text", ["demo", "./name", "../name", "/a/b", "a/b/c", "a b/c", ""])
def test_not_hub_ids(text: str) -> None:
    assert not is_hub_id(text)


@pytest.mark.parametrize("folder", ["FL2VA", "Ref2VA", "transformer", "transformer_ref"])
def test_a_folder_with_weights_passes(tmp_path: Path, folder: str) -> None:
    with pytest.raises(CheckpointError):
        check_model(str(tmp_path))
    (tmp_path / folder).mkdir()
    assert check_model(str(tmp_path)) is None


@pytest.mark.parametrize("model", ["demo", "demo-random", "owner/name"])
def test_what_is_fetched_or_made_passes(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_model(model) is None


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("", "no folder, no hub id"),
        ("demos", "no folder, no hub id"),
        ("./none", "no folder, no hub id"),
        ("other/files", "neither FL2VA/ or Ref2VA/"),  # a folder wins over the hub
        ("other/files/a.safetensors", "'other/files/a.safetensors' is a safetensors file; wanted is the folder of a"),
        ("other/a.GGUF", "is a GGUF file; wanted is the folder of a"),  # not: a hub id
        ("a.gguf", "is a GGUF file; wanted is the folder of a"),
        ("owner/name", "is a file; wanted is the folder of a"),
        ("other/none.gguf", "would be a GGUF file, which is not there; and wanted is"),
        ("none.safetensors", "would be a safetensors file, which is not there"),
        ("~nobody-of-that-name/model", "its user is not known"),
    ],
)
def test_what_can_be_no_checkpoint(model: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other" / "files").mkdir(parents=True)
    (tmp_path / "owner").mkdir()
    for file in ("other/files/a.safetensors", "other/a.GGUF", "a.gguf", "owner/name"):
        (tmp_path / file).write_bytes(b"x")
    with pytest.raises(CheckpointError, match=words):
        check_model(model)
