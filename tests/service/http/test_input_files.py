import base64
from dataclasses import replace
from pathlib import Path

import pytest

from h3serve.core.errors import MediaError
from h3serve.media.sources.media_file import IngestLimits, SourcePolicy
from h3serve.service.http.body import Upload
from h3serve.service.http.input_files import Sources

JOB = "video_" + "0" * 32


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "a b.png").write_bytes(b"allowed")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "allowed" / "link.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "00.png").write_bytes(b"earlier")
    uploads = []
    for number, (part, name) in enumerate([("first", "A.PNG"), ("x", "same.png"), ("y", "same.png")]):
        path = tmp_path / f"upload-{number}"
        path.write_bytes(name.encode())
        uploads.append(Upload(path, part, name))
    policy = SourcePolicy(folders=(tmp_path / "allowed",), limits=IngestLimits(max_file_bytes=1000))
    return Sources(uploads, {JOB: tmp_path / "inputs"}.get, policy)


def take(sources: Sources, uri: str, tmp_path: Path) -> tuple[str, bytes]:
    file = sources.take(uri, tmp_path / "new", "00", "conditions[0]")
    return file.path.name, file.path.read_bytes()


def test_every_place_a_file_may_come_from(sources: Sources, tmp_path: Path) -> None:
    assert take(sources, "upload:first", tmp_path) == ("00.png", b"A.PNG")
    assert take(sources, "A.PNG", tmp_path) == ("00.png", b"A.PNG")
    assert take(sources, f"job:{JOB}/00.png", tmp_path) == ("00.png", b"earlier")
    data = base64.b64encode(b"bytes").decode()
    assert take(sources, f"data:image/png;base64,{data}", tmp_path) == ("00", b"bytes")
    assert take(sources, f"base64://{data}", tmp_path) == ("00", b"bytes")
    assert take(sources, str(tmp_path / "allowed" / "a b.png"), tmp_path) == ("00.png", b"allowed")
    assert take(sources, f"file://{tmp_path}/allowed/a%20b.png", tmp_path) == ("00.png", b"allowed")


@pytest.mark.parametrize(
    "uri",
    [
        "{root}/secret.png",
        "{root}/allowed/../secret.png",
        "{root}/allowed/link.png",
        "file://{root}/secret.png",
        "file://localhost/{root}/allowed/a.png",
        "{root}/allowed/none.png",
        "{root}/allowed",
        "/etc/passwd",
        "s3://bucket/key",
        "tar+offset://x",
        "ftp://host/a",
        "http://127.0.0.1/a.png",
        "same.png",
        "upload:other",
        f"job:{JOB}/../../secret.png",
        f"job:{JOB}/01.png",
        "job:video_" + "1" * 32 + "/00.png",
        "data:image/png;base64,!!!!",
        "data:image/png;base64," + "A" * 5000,
        "a\0b",
        "x" * 10_000,
    ],
)
def test_everything_else_is_refused_without_a_path(sources: Sources, tmp_path: Path, uri: str) -> None:
    with pytest.raises(MediaError) as caught:
        take(sources, uri.replace("{root}", str(tmp_path)), tmp_path)
    assert caught.value.field == "conditions[0]"


def test_urls_can_be_forbidden(sources: Sources, tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="does not fetch URLs"):
        take(replace(sources, fetch_urls=False), "HTTPS://example.com/a.png", tmp_path)


def test_an_upload_nobody_names_is_refused(sources: Sources, tmp_path: Path) -> None:
    take(sources, "first", tmp_path)
    with pytest.raises(MediaError, match="no condition names"):
        sources.check_all_used()
