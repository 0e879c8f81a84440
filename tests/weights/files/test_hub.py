"""Hub ids: which files are asked for, and what offline and other failures say. No test here may reach a network."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import filter_repo_objects

from h3serve.core.errors import CheckpointError
from h3serve.weights.files import hub
from h3serve.weights.files.hub import download, needed_files

ORIGINAL = ["model_index.json", "transformer/config.json", "transformer/model-00001-of-00013.safetensors"]
ORIGINAL += ["transformer/model.safetensors.index.json", "text_encoder/model.safetensors", "tokenizer/merges.txt"]
ORIGINAL += ["processor/chat_template.jinja", "video_vae/config.json", "video_vae/source/model.safetensors"]
ORIGINAL += ["audio_vae/metadata.json", "audio_vae/model.safetensors"]
ORIGINAL_IGNORED = ["video_vae/klvae.py", "audio_vae/config.yaml", "README.md"]
DIFFUSERS = ["transformer/config.json", "vae/a.safetensors", "audio_vae/config.json", "text_encoder/config.json"]
DIFFUSERS += ["tokenizer/vocab.json", "processor/vocab.json", "scheduler/scheduler_config.json"]
DIFFUSERS += ["audio_scheduler/scheduler_config.json", "modular_model_index.json"]
RELEASE = [f"{p}/{name}" for p in ("FL2VA", "Ref2VA") for name in ORIGINAL + ORIGINAL_IGNORED]
RELEASE += [*DIFFUSERS, "transformer_ref/config.json", "samples/t2va.mp4", "README.md"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("a test reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize(
    ("cache", "environment", "place"),
    [
        (None, {}, None),
        ("{folder}", {}, "{folder}/hub"),
        ("{folder}", {"HF_HUB_CACHE": "/elsewhere"}, None),
        ("{folder}", {"HF_HOME": "/elsewhere"}, None),
    ],
)
def test_where_a_snapshot_is_kept(
    cache: str | None, environment: dict[str, str], place: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = []

    def fetch(model: str, *, cache_dir: Path | None, **_: Any) -> str:
        places.append(cache_dir)
        write_index(tmp_path / "model_index.json", True)
        return str(tmp_path)

    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(hub, "snapshot_download", fetch)
    download("owner/name", "fl2va", cache=None if cache is None else str(tmp_path))
    assert places == [None if place is None else tmp_path / "hub"] * 2


def write_index(file: Path, marker: bool) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"_minimax_h3": {}} if marker else {"_class_name": "x"}))


def asked(snapshot: Path, partition: Any, files: list[str]) -> set[str]:
    return set(filter_repo_objects(files, allow_patterns=list(needed_files(snapshot, partition))))


def test_the_release_gives_one_original_partition(tmp_path: Path) -> None:
    for name in ("FL2VA", "Ref2VA"):
        write_index(tmp_path / name / "model_index.json", True)
    write_index(tmp_path / "model_index.json", False)
    assert asked(tmp_path, "fl2va", RELEASE) == {f"FL2VA/{name}" for name in ORIGINAL}
    assert asked(tmp_path, "ref2va", RELEASE) == {f"Ref2VA/{name}" for name in ORIGINAL}


def test_a_repository_of_one_partition(tmp_path: Path) -> None:
    write_index(tmp_path / "model_index.json", True)
    assert asked(tmp_path, "fl2va", ORIGINAL + ORIGINAL_IGNORED) == set(ORIGINAL)


def test_a_repository_in_the_diffusers_layout(tmp_path: Path) -> None:
    write_index(tmp_path / "model_index.json", False)
    files = [*DIFFUSERS, "transformer_ref/config.json", "samples/a.mp4"]
    assert asked(tmp_path, "fl2va", files) == set(DIFFUSERS)
    expected = set(DIFFUSERS) - {"transformer/config.json"} | {"transformer_ref/config.json"}
    assert asked(tmp_path, "ref2va", files) == expected


def test_the_small_files_come_first_and_the_revision_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_index(tmp_path / "Ref2VA" / "model_index.json", True)
    calls = []

    def fake(repo: str, *, revision: str, allow_patterns: list[str], cache_dir: Path | None) -> str:
        calls.append((repo, revision, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", fake)
    assert download("owner/name", "ref2va", revision="v1") == tmp_path
    assert [(repo, revision) for repo, revision, _ in calls] == [("owner/name", "v1")] * 2
    assert calls[0][2] == ["*model_index.json"]
    assert "Ref2VA/*.safetensors" in calls[1][2] and "FL2VA/*.safetensors" not in calls[1][2]


def test_offline_and_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"owner/name at revision v1 is not, .* cannot be reached"):
        download("owner/name", "fl2va", revision="v1")


def test_offline_and_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot as an earlier download leaves it is used without a network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--owner--name"
    write_index(repository / "snapshots" / ("0" * 40) / "FL2VA" / "model_index.json", True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert download("owner/name", "fl2va") == repository / "snapshots" / ("0" * 40)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LocalEntryNotFoundError("x"), "not wholly, in the local hub cache"),
        (OSError("disk full\nmore"), "could not be fetched: OSError: disk full$"),
    ],
)
def test_failures_are_one_sentence(error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> str:
        raise error

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match=reason):
        download("owner/name", "fl2va")
