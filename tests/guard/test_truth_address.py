import subprocess
from types import SimpleNamespace

import pytest

from h3serve.core.errors import OutputError, RequestError
from h3serve.guard import truth_address
from h3serve.guard.truth_address import Address, fetch, parse_address, publish

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def candidates(tmp_path):
    root = tmp_path / "candidates"
    for name in ("rain", "snow"):
        (root / "cpu" / name).mkdir(parents=True)
        (root / "cpu" / name / "facts.json").write_text(f"{name} 1")
    (root / "cpu" / "torn").mkdir()
    return root


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A bare Git repository with one commit, as a server holds it."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "guard")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "guard@example.com")
    bare, work = tmp_path / "truths.git", tmp_path / "work"
    git("init", "--quiet", "--bare", "--initial-branch=main", str(bare))
    git("clone", "--quiet", str(bare), str(work))
    (work / "README").write_text("truths")
    git("-C", str(work), "checkout", "--quiet", "-B", "main")
    git("-C", str(work), "add", "README")
    git("-C", str(work), "commit", "--quiet", "--message", "start")
    git("-C", str(work), "push", "--quiet", "origin", "main")
    return f"git+{bare}"


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("baselines", Address("folder", "baselines")),
        (f"git+https://h/t.git@{COMMIT}", Address("git", "https://h/t.git", COMMIT)),
        ("git+ssh://git@h/t.git", Address("git", "ssh://git@h/t.git")),
        ("git+git@h:o/t.git", Address("git", "git@h:o/t.git")),
        (f"git+git@h:o/t.git@{COMMIT}", Address("git", "git@h:o/t.git", COMMIT)),
        (f"hub:owner/truths@{COMMIT}", Address("hub", "owner/truths", COMMIT)),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["hub:owner/truths", "hub:owner/truths@main", "git+https://h/t.git@0123abc"])
def test_a_remote_store_is_pinned_by_a_full_commit(text, tmp_path):
    with pytest.raises(RequestError, match="commit"):
        fetch(text, tmp_path, "cpu")


def test_publish_to_a_folder_keeps_other_cases(candidates, tmp_path):
    store = tmp_path / "store"
    (store / "cpu" / "hail").mkdir(parents=True)
    (store / "cpu" / "rain").mkdir()
    (store / "cpu" / "rain" / "frame_0099.png").write_text("of an older, longer clip")
    assert publish(candidates, str(store)) == str(store)
    assert sorted(path.name for path in (store / "cpu").iterdir()) == ["hail", "rain", "snow"]
    assert [path.name for path in (store / "cpu" / "rain").iterdir()] == ["facts.json"]


def test_publish_some_cases_for_every_platform(candidates, tmp_path):
    publish(candidates, str(tmp_path / "store"), common=True, case_ids=("snow",))
    assert [str(p.relative_to(tmp_path)) for p in (tmp_path / "store").glob("*/*")] == ["store/common/snow"]


@pytest.mark.parametrize("case_id", ["hail", "torn"])
def test_publish_without_a_whole_candidate_is_an_error(candidates, tmp_path, case_id):
    with pytest.raises(RequestError, match=case_id):
        publish(candidates, str(tmp_path / "store"), case_ids=("rain", case_id))
    assert not (tmp_path / "store").exists()


def test_git_round_trip_by_revision(candidates, repository, tmp_path):
    first = publish(candidates, repository)
    (candidates / "cpu" / "rain" / "facts.json").write_text("rain 2")
    second = publish(candidates, repository)
    assert first != second
    for commit, text in ((first, "rain 1"), (second, "rain 2"), (first, "rain 1")):
        root = fetch(f"{repository}@{commit}", tmp_path / "cache", "cpu")
        assert (root / "cpu" / "rain" / "facts.json").read_text() == text


def test_git_publish_of_nothing_new_keeps_the_revision(candidates, repository):
    assert publish(candidates, repository) == publish(candidates, repository)


def test_git_unknown_commit_is_one_sentence(repository, tmp_path):
    with pytest.raises(OutputError, match="git checkout failed"):
        fetch(f"{repository}@{COMMIT}", tmp_path / "cache", "cpu")
    assert list((tmp_path / "cache").iterdir()) == []


def test_hub_fetches_this_platform_at_the_commit(tmp_path, monkeypatch):
    asked = {}
    answer = str(tmp_path)
    monkeypatch.setattr(truth_address, "snapshot_download", lambda repo, **kw: asked.update(kw, repo=repo) or answer)
    assert fetch(f"hub:owner/truths@{COMMIT}", tmp_path / "cache", "nvidia-h200") == tmp_path
    assert asked == {
        "repo": "owner/truths",
        "repo_type": "dataset",
        "revision": COMMIT,
        "cache_dir": tmp_path / "cache",
        "allow_patterns": ["nvidia-h200/*", "common/*"],
    }


def test_hub_publish_uploads_the_official_names(candidates, monkeypatch):
    uploaded = []

    class Api:
        def upload_folder(self, *, folder_path, repo_id, repo_type, commit_message):
            from pathlib import Path

            uploaded.extend(sorted(str(p.relative_to(folder_path)) for p in Path(folder_path).rglob("*.json")))
            assert (repo_id, repo_type) == ("owner/truths", "dataset")
            return SimpleNamespace(oid=COMMIT)

    monkeypatch.setattr(truth_address, "HfApi", Api)
    assert publish(candidates, "hub:owner/truths") == COMMIT
    assert uploaded == ["cpu/rain/facts.json", "cpu/snow/facts.json"]
