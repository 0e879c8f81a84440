"""Where media come from: every kind of uri, what is refused, and that no copy stays behind."""

import base64
import json
import tarfile
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from h3serve.core.errors import Cancelled, MediaError, OutputError
from h3serve.media.read.probe import probe_media
from h3serve.media.read.video import decode_clip
from h3serve.media.sources.media_file import IngestLimits, SourcePolicy
from h3serve.media.sources.open_source import open_source
from tests.media.films import counter, film

CONTENT = bytes(range(256)) * 3 + b"\xfb\xff"


@pytest.fixture
def temp(tmp_path: Path) -> Path:
    (tmp_path / "temp").mkdir()
    return tmp_path / "temp"


def read(uri: str, policy: SourcePolicy) -> bytes:
    with open_source(uri, policy, field="conditions[0].uri") as file:
        return file.path.read_bytes()


def refused(uri: str, policy: SourcePolicy, match: str) -> None:
    with pytest.raises(MediaError, match=match) as caught, open_source(uri, policy, field="conditions[0].uri"):
        pytest.fail("opened")
    assert caught.value.field == "conditions[0].uri"
    if policy.temp_folder:
        assert list(policy.temp_folder.iterdir()) == []


@pytest.mark.parametrize("form", ["{p}", "file://{p}", "file://localhost{p}", "FILE://{p}"])
def test_local_files_are_read_in_place(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT)
    with open_source(form.format(p=path)) as file:
        assert file.path == path


def test_relative_and_odd_paths(tmp_path: Path) -> None:
    policy = SourcePolicy(base=tmp_path)
    for name in ("a b.png", "50%.png", "é.png", "x:y.png", "#1?.png"):
        (tmp_path / name).write_bytes(CONTENT)
        assert read(name, policy) == CONTENT
        assert read(f"file://{quote(str(tmp_path / name))}", policy) == CONTENT


def test_allowed_folders(tmp_path: Path) -> None:
    """Nothing outside is read, by no detour, and nothing is told about it."""
    inside, outside = tmp_path / "in", tmp_path / "in-not"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "a.bin").write_bytes(CONTENT)
    (inside / "link").symlink_to(outside / "a.bin")
    (inside / "folder").symlink_to(outside)
    policy = SourcePolicy(folders=(inside,), base=inside)
    assert read("a.bin", policy) == read(f"file://{inside}/a.bin", policy) == CONTENT
    for uri in (
        f"{outside}/a.bin",
        f"file://{outside}/a.bin",
        f"file://{inside}/../in-not/a.bin",
        f"file://{inside}/%2e%2e/in-not/a.bin",
        "../in-not/a.bin",
        "link",
        "folder/a.bin",
        "/etc/passwd",
        "/no/such/file",
        "~/x",
    ):
        refused(uri, policy, "only from the folders")
    refused("a.bin", SourcePolicy(folders=(), base=inside), "only from the folders")


IMPOSSIBLE = ["a\ud800.png", "file:///a\udcff", "~\ud800/a.png", "n" * 5000, "n/" * 3000]


@pytest.mark.parametrize("uri", ["none.png", ".", "file://other.host/a.png", "", "  ", "a\0b", *IMPOSSIBLE])
def test_no_such_file(tmp_path: Path, uri: str) -> None:
    """B30: blank or wrong names are a sentence, never a path error."""
    refused(uri, SourcePolicy(base=tmp_path), "no such file|no host|empty")


@pytest.mark.parametrize(
    "uri", ["s3://bucket/key", "ftp://host/a.png", "gopher://x", "javascript://x", "concat://a|b", "tar://x"]
)
def test_other_schemes_are_refused(uri: str) -> None:
    refused(uri, SourcePolicy(), "is not supported; use a path")


PLAIN = base64.b64encode(CONTENT).decode()


@pytest.mark.parametrize(
    "uri",
    [
        f"data:image/png;base64,{PLAIN}",
        f"data:;base64,{PLAIN}",
        f"DATA:image/png;charset=utf-8;name=a.png;BASE64,{PLAIN}",
        f"data:image/png;base64,{PLAIN.rstrip('=')}",
        "data:image/png;base64,\n" + "\r\n".join(PLAIN[i : i + 76] for i in range(0, len(PLAIN), 76)) + "\n",
        f"data:image/png;base64,{base64.urlsafe_b64encode(CONTENT).decode()}",
        f"data:image/png;base64,{quote(PLAIN, safe='')}",
        f"base64://{PLAIN}",
        f"base64://{PLAIN.rstrip('=')}",
        f"data:application/octet-stream,{quote(CONTENT)}",
    ],
)
def test_inline_media(temp: Path, uri: str) -> None:
    policy = SourcePolicy(temp_folder=temp)
    assert read(uri, policy) == CONTENT
    assert list(temp.iterdir()) == []


@pytest.mark.parametrize(
    ("uri", "match"),
    [
        ("data:image/png;base64,", "no content"),
        ("data:image/png;base64,  \n ==", "no content"),
        ("data:,", "no content"),
        ("base64://", "no content"),
        ("data:image/png;base64", "comma"),
        ("data:", "comma"),
        ("data:image/png;base64,abcde", "cut off"),
        ("data:image/png;base64,ab!d", "not base64"),
        ("data:image/png;base64,ab=d", "not base64"),
        ("base64://é000", "not base64"),
        (f"base64://{PLAIN}", "at most 700 are taken"),
        (f"data:,{'x' * 701}", "at most 700 are taken"),
    ],
)
def test_bad_inline_media(temp: Path, uri: str, match: str) -> None:
    refused(uri, SourcePolicy(temp_folder=temp, limits=IngestLimits(max_file_bytes=700)), match)


def test_errors_do_not_repeat_the_payload(temp: Path) -> None:
    with pytest.raises(MediaError) as caught, open_source(f"base64://!!!!{PLAIN}"):
        pytest.fail("opened")
    length = len(PLAIN) + len("base64://!!!!")
    assert str(caught.value) == f"media: 'base64: uri of {length} characters' is not usable: its content is not base64"


def header(**fields: object) -> str:
    return base64.urlsafe_b64encode(json.dumps({"schema": "sglang.tar_member_ref/v1", **fields}).encode()).decode()


@pytest.fixture
def archive(tmp_path: Path) -> tuple[Path, int]:
    (tmp_path / "a.bin").write_bytes(CONTENT)
    with tarfile.open(tmp_path / "shard:0.tar", "w") as tar:
        tar.add(tmp_path / "a.bin", "x/a.bin")
    with tarfile.open(tmp_path / "shard:0.tar") as tar:
        return tmp_path / "shard:0.tar", tar.getmember("x/a.bin").offset_data


@pytest.mark.parametrize("scheme", ["tar+offset", "tar+b64header"])
def test_tar_member(temp: Path, archive: tuple[Path, int], scheme: str) -> None:
    path, offset = archive
    policy = SourcePolicy(temp_folder=temp, folders=(path.parent,))
    encoded = header(offset_data=offset, size=len(CONTENT), member="x/a.bin")
    for ending in (encoded, encoded.rstrip("=")):
        assert read(f"{scheme}://{path}:{ending}", policy) == CONTENT
    refused(f"{scheme}://{path}:{encoded}", SourcePolicy(folders=()), "only from the folders")
    assert list(temp.iterdir()) == []


@pytest.mark.parametrize(
    ("ending", "match"),
    [
        (header(offset_data=0, size=10**6), "the archive ends"),
        (header(offset_data=10**9, size=5), "the archive ends"),
        (header(offset_data=2**62, size=5), "the archive ends"),  # no file system can seek there
        (header(offset_data=2**70, size=5), "the archive ends"),  # no file has that many
        (header(offset_data=10**4000, size=5), "the archive ends"),
        (header(offset_data=5, size=10**4000), "are taken"),
        (header(offset_data=0, size=0), "has 0 bytes"),
        (header(offset_data=0, size=-1), "has -1 bytes"),
        (header(offset_data=-1, size=5), "tar uri is"),
        (header(offset_data=True, size=5), "tar uri is"),
        (header(offset_data="0", size=5), "tar uri is"),
        (header(size=5), "tar uri is"),
        (header(offset_data=0, size=5, schema="other/v1"), "the schema is"),
        (header(offset_data=0, size=2**40), "are taken"),
        (base64.urlsafe_b64encode(b"[1]").decode(), "tar uri is"),
        (base64.urlsafe_b64encode(b"[" * 6000).decode(), "tar uri is"),
        ("!!", "tar uri is"),
        ("é", "tar uri is"),
        ("A" * 9000, "tar uri is"),
        ("", "tar uri is"),
    ],
)
def test_bad_tar_members(temp: Path, archive: tuple[Path, int], ending: str, match: str) -> None:
    refused(f"tar+offset://{archive[0]}:{ending}", SourcePolicy(temp_folder=temp), match)


def test_a_member_ends_with_its_archive_at_the_latest(temp: Path, archive: tuple[Path, int]) -> None:
    path, length = archive[0], archive[0].stat().st_size
    policy = SourcePolicy(temp_folder=temp, folders=(path.parent,))
    last = f"tar+offset://{path}:{header(offset_data=length - 5, size=5)}"
    assert read(last, policy) == path.read_bytes()[-5:]
    refused(f"tar+offset://{path}:{header(offset_data=length - 4, size=5)}", policy, "the archive ends 1 bytes before")


def test_a_large_archive_is_bounded_by_its_member(temp: Path, archive: tuple[Path, int]) -> None:
    """Shards of 10 GB are ordinary: what is copied counts, not what it lies in."""
    path, offset = archive
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    ending = header(offset_data=offset, size=len(CONTENT))
    policy = SourcePolicy(temp_folder=temp, limits=IngestLimits(max_file_bytes=len(CONTENT)))
    assert read(f"tar+offset://{path}:{ending}", policy) == CONTENT
    refused(f"tar+offset://{path}:{header(offset_data=offset, size=len(CONTENT) + 1)}", policy, "are taken")
    refused(str(path), policy, "at most")


def test_tar_uri_without_parts(temp: Path) -> None:
    refused(f"tar+offset://a\ud800.tar:{header(offset_data=0, size=5)}", SourcePolicy(temp_folder=temp), "no such file")
    for uri in ("tar+offset://", "tar+offset://x", "tar+offset://:abc"):
        refused(uri, SourcePolicy(temp_folder=temp), "tar uri is")


@pytest.mark.parametrize("error", [None, MediaError("a", 1, "b"), Cancelled("stop"), KeyboardInterrupt()])
def test_copies_are_gone_however_it_ends(temp: Path, error: BaseException | None) -> None:
    """B18: nothing accumulates, whether the request is done, refused or cancelled."""
    for _ in range(100):
        try:
            with open_source(f"base64://{PLAIN}", SourcePolicy(temp_folder=temp)) as file:
                assert file.path.parent == temp
                if error:
                    raise error
        except (MediaError, Cancelled, KeyboardInterrupt) as caught:
            assert caught is error
        assert list(temp.iterdir()) == []


def test_no_place_for_copies(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=r"conditions\[0\].uri could not be stored"),
        open_source("base64://AAAA", SourcePolicy(temp_folder=tmp_path / "none"), field="conditions[0].uri"),
    ):
        pytest.fail("opened")


def test_the_way_in_does_not_matter(tmp_path: Path, temp: Path) -> None:
    """B15: a clip conditions the same as a path, inline or in an archive."""
    path = film(tmp_path / "a.mp4", [counter(i) for i in range(24)])
    raw = path.read_bytes()
    shard = tmp_path / "s.tar"
    shard.write_bytes(b"x" * 512 + raw)
    uris = [
        str(path),
        path.as_uri(),
        f"data:video/mp4;base64,{base64.b64encode(raw).decode()}",
        f"tar+offset://{shard}:{header(offset_data=512, size=len(raw))}",
    ]
    policy, results = SourcePolicy(temp_folder=temp), []
    for uri in uris:
        with open_source(uri, policy) as file:
            results.append((probe_media(file), decode_clip(file, (64, 32), 24)))
        assert list(temp.iterdir()) == []
    for probe, clip in results[1:]:
        assert probe == results[0][0]
        assert np.array_equal(clip, results[0][1])


def test_unreadable_content_is_named_as_it_was_given(temp: Path) -> None:
    """B56: errors speak of what the person sent, not of our temporary file."""
    policy = SourcePolicy(temp_folder=temp)
    with (
        open_source("base64://aGVsbG8=", policy, field="conditions[2].uri") as file,
        pytest.raises(MediaError) as caught,
    ):
        probe_media(file)
    assert str(temp) not in str(caught.value)
    assert str(caught.value).startswith("conditions[2].uri: 'base64: uri of 17 characters'")


@pytest.mark.parametrize("folders", [None, ()])
@pytest.mark.parametrize(
    ("uri", "advice"),
    [
        (" data:image/png;base64,iVBORw0KGgo=", "take the blank before it away"),
        ("\nhttps://example.com/a.png", "take the blank before it away"),
        ("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "base64:"),
        ("/9j/" + "4AAQSkZJRgABAQAAAQABAAD/" * 4000, "write data:;base64, before it"),
    ],
)
def test_a_slip_before_inline_media_gets_advice(uri: str, advice: str, folders: tuple[Path, ...] | None) -> None:
    with pytest.raises(MediaError, match=advice), open_source(uri, SourcePolicy(folders=folders)):
        pass


def test_an_ordinary_missing_file_gets_no_advice(tmp_path: Path) -> None:
    for name in ("holiday.png", "a/b/c", "x" * 40):
        with pytest.raises(MediaError, match="there is no such file$"), open_source(str(tmp_path / name)):
            pass
