"""Where ground truths come from and go to: a folder, a Git repository or a hub repository.

    baselines                            a folder, versioned with the code around it
    git+https://host/truths.git@COMMIT   a Git repository at a commit
    hub:owner/truths@COMMIT              a Hugging Face data set repository at a commit

A commit is named in full, so that the same address always means the same truths.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from h3serve.core.errors import OutputError, RequestError
from h3serve.guard.truth_store import COMMON, copy_case, whole_cases

_COMMIT = re.compile(r"[0-9a-f]{40}")
_MESSAGE = "Guard: accept new ground truths"


@dataclass(frozen=True)
class Address:
    """A store, as parsed from its text form; `commit` is None for a folder and for a publish target."""

    kind: Literal["folder", "git", "hub"]
    place: str
    commit: str | None = None


def parse_address(text: str) -> Address:
    """The parts of a store's address; a RequestError if the commit is not a full one."""
    for prefix, kind in (("git+", "git"), ("hub:", "hub")):
        if text.startswith(prefix):
            place, at, commit = text.removeprefix(prefix).rpartition("@")
            if not at or "/" in commit or ":" in commit:  # an @ of user@host, or none at all
                return Address(kind, text.removeprefix(prefix))  # type: ignore[arg-type]
            if not _COMMIT.fullmatch(commit):
                raise RequestError("store", text, "after @ comes a full commit of 40 hexadecimal digits")
            return Address(kind, place, commit)  # type: ignore[arg-type]
    return Address("folder", text)


def fetch(text: str, cache: Path, platform: str) -> Path:
    """The local folder of the store at `text`; remote ones are brought into `cache` first."""
    address = parse_address(text)
    if address.kind == "folder":
        return Path(address.place)
    if address.commit is None:
        raise RequestError("store", text, "a remote store is pinned: append @ and a full commit")
    if address.kind == "git":
        return _fetch_git(address.place, address.commit, cache)
    try:
        patterns = [f"{platform}/*", f"{COMMON}/*"]
        return Path(
            snapshot_download(
                address.place, repo_type="dataset", revision=address.commit, cache_dir=cache, allow_patterns=patterns
            )
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise RequestError("store", text, f"it cannot be fetched: {_first_line(error)}") from None


def publish(candidates: Path, text: str, *, common: bool = False, case_ids: tuple[str, ...] = ()) -> str:
    """Copies whole clips and meters under `candidates` into the store at `text`; returns its next revision.

    `common` puts clips where every platform finds them. Named cases bring their clips alone. For a folder
    the revision is its path: commit it.
    """
    accepted = [path for path in whole_cases(candidates) if not case_ids or path.name in case_ids]
    missing = sorted(set(case_ids) - {path.name for path in accepted})
    if not case_ids:
        accepted += sorted(candidates.glob("*/meters-*gpu.yaml"))
    if missing or not accepted:
        wanted = ", ".join(missing) or str(candidates)
        raise RequestError("case-ids", wanted, "there is no whole candidate to publish under that name")
    address = parse_address(text)
    if address.kind == "folder":
        _lay_out(accepted, Path(address.place), common)
        return address.place
    with tempfile.TemporaryDirectory() as scratch:
        if address.kind == "git":
            return _publish_git(accepted, address.place, Path(scratch) / "store", common)
        _lay_out(accepted, Path(scratch), common)
        commit = HfApi().upload_folder(
            folder_path=scratch, repo_id=address.place, repo_type="dataset", commit_message=_MESSAGE
        )
        return commit.oid


def _lay_out(accepted: list[Path], root: Path, common: bool) -> None:
    for source in accepted:
        target = root / (COMMON if common and source.is_dir() else source.parent.name) / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            copy_case(source, target)
        else:
            shutil.copyfile(source, target)


def _fetch_git(url: str, commit: str, cache: Path) -> Path:
    """A checkout of its own for each commit, so that two runs never move one another's files."""
    checkout = cache / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{commit}"
    if not checkout.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            fresh = Path(scratch) / "store"
            _git("clone", "--quiet", "--no-checkout", "--", url, str(fresh))
            _git("checkout", "--quiet", "--detach", commit, folder=fresh)
            fresh.rename(checkout)
    return checkout


def _publish_git(accepted: list[Path], url: str, checkout: Path, common: bool) -> str:
    _git("clone", "--quiet", "--depth", "1", "--", url, str(checkout))
    _lay_out(accepted, checkout, common)
    _git("add", "--all", folder=checkout)
    if _git("status", "--porcelain", folder=checkout):
        _git("commit", "--quiet", "--message", _MESSAGE, folder=checkout)
        _git("push", "--quiet", "origin", "HEAD", folder=checkout)
    return _git("rev-parse", "HEAD", folder=checkout)


def _git(*arguments: str, folder: Path | None = None) -> str:
    command = ["git", *(["-C", str(folder)] if folder else []), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise OutputError("git is not installed; a git+ store needs it") from None
    except subprocess.CalledProcessError as error:
        raise OutputError(f"git {arguments[0]} failed: {_first_line(error.stderr)}") from None
    return done.stdout.strip()


def _first_line(error: object) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason given")
