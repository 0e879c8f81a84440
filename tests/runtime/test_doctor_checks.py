"""The doctor finds planted faults, says what to do, and survives its own."""

import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest

from h3serve.cli.main import run
from h3serve.runtime import doctor_checks


def found() -> dict[str, doctor_checks.MachineFinding]:
    return {finding.subject: finding for finding in doctor_checks.examine()}


def test_everything_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # ranks that other tests made leave them set
        monkeypatch.delenv(name, raising=False)
    seen = found()
    assert {"versions", "driver", "/dev/shm", "memory files", "open files", "set by us", "timeouts"} <= seen.keys()
    assert "NCCL_DEBUG=INFO" in seen["set by you"].text
    assert "GLOO_SOCKET_IFNAME=lo" in seen["set by us"].text


def test_small_shared_memory_breaks_several_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(64 << 20, 0, 64 << 20))
    for count, level in ((1, "warning"), (2, "fault")):
        monkeypatch.setattr(doctor_checks.torch.cuda, "device_count", lambda count=count: count)
        (finding,) = doctor_checks.shared_memory()
        assert finding.level == level and "--shm-size" in finding.text


def test_no_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor_checks, "SHM", tmp_path / "none")
    assert next(doctor_checks.shared_memory()).level == "warning"


def test_memory_files_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError(1, "not here")

    monkeypatch.setattr(os, "memfd_create", refuse)
    (finding,) = doctor_checks.memory_files()
    assert finding.level == "warning" and "every rank decodes" in finding.text


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    assert "ulimit -n 4096" in next(doctor_checks.limits()).text


def test_gpus_without_direct_links(monkeypatch: pytest.MonkeyPatch) -> None:
    class Card:
        name, total_memory, major, minor = "H200", 150 << 30, 9, 0

    monkeypatch.setattr(doctor_checks.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(doctor_checks.torch.cuda, "get_device_properties", lambda _: Card)
    monkeypatch.setattr(doctor_checks.torch.cuda, "can_device_access_peer", lambda a, b: a < b)
    assert "1 of 2 directions" in list(doctor_checks.gpus())[-1].text


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Any:
        raise RuntimeError("no such card")

    monkeypatch.setattr(doctor_checks, "CHECKS", (broken,))
    assert run(["doctor"]) == 1
    assert "fault: RuntimeError: no such card" in capsys.readouterr().out
