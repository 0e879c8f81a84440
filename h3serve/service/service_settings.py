"""How a server runs. Each option is defined once, here: name, type, default and the sentence that explains it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

from h3serve.core.settings import EngineSettings, ModelSettings, option
from h3serve.prompts.endpoint import EnhanceSettings

GIB = 2**30
DAY_S = 86400.0


@dataclass(frozen=True)
class Retention:
    """Bounds in seconds and bytes; None keeps without bound. Records outlive their files."""

    files_s: float | None = option(
        7 * DAY_S, "Days that files of jobs that ended are kept.", flag="--keep-days", unit=DAY_S
    )
    files_bytes: int | None = option(
        None, "GiB of files of jobs that ended that are kept.", flag="--keep-gib", unit=GIB
    )
    records_s: float | None = 30 * DAY_S


@dataclass(frozen=True)
class WorkerRules:
    """When a worker counts as hung, and how long it may take; seconds."""

    beat_s: float = 1.0
    silent_s: float = 60.0  # without a beat: the process does not answer
    stalled_s: float = 1800.0  # without a step: it answers but does not advance
    load_s: float = 3600.0
    cancel_s: float = 120.0  # a cancelled job that has not stopped by then loses its worker
    exit_s: float = 300.0  # a killed process that has not ended by then is left behind
    restart_s: float = 1.0  # before the first restart; doubles up to `restart_max_s`
    restart_max_s: float = 60.0


@dataclass(frozen=True)
class BodyLimits:
    """Bounds of one HTTP body, enforced while it streams in; bytes."""

    body: int = 2 * GIB
    file: int = GIB
    json: int = 64 * 2**20  # of a JSON body, with references as data URIs
    field: int = 2**20
    free: int = 256 * 2**20  # of the disk, which bodies leave
    files: int = 16
    fields: int = 128


@dataclass(frozen=True)
class ConnectionLimits:
    """Bounds of HTTP connections; who is past one is cut off."""

    most: int = option(  # fewer where the system's limit of open files is lower
        4000, "Open HTTP connections.", flag="--max-connections", least=8
    )
    streams: int = option(100, "Open event streams of one API key.", flag="--max-streams", least=1)
    header_s: float = 20.0  # for a request's header
    body_s: float = 30.0  # for its body, and as long again as it takes at `body_rate`
    body_rate: float = 16 * 2**10  # bytes a second
    ignored: int = 256 * 2**20  # bytes of a body that is sent on though its request was refused
    send_s: float = 60.0  # without room to send: the client does not read


@dataclass(frozen=True)
class ServiceSettings(ModelSettings):
    """What a server loads, on which devices, and what it lets its callers do."""

    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8000, "Port; 0 takes a free one.")
    allowed_hosts: tuple[str, ...] = option(
        (), "Name that requests may call the server, beside loopback. Repeatable.", flag="--allowed-host"
    )
    data: Path = option(Path("h3serve-data"), "Folder of jobs and their files.")
    database: str | None = option(None, "postgresql+psycopg://… instead of SQLite in --data.")
    devices: tuple[str, ...] = option(
        ("auto",), "One worker, with its own copy of the model, on each: cuda:0, cpu. Repeatable.", flag="--device"
    )
    aliases: tuple[str, ...] = option(
        (), "NAME=MODEL: callers may name the model so, such as sora-2=demo. Repeatable.", flag="--model-alias"
    )
    ray: str | None = option(None, "Run workers on a Ray cluster: its address, or auto.")
    max_queued: int = option(100, "Jobs that may wait; more get 429.")
    drain_s: float = option(600.0, "Seconds running jobs may take after SIGTERM.", flag="--drain")
    keys: Path | None = option(None, "File of API keys; without it anybody may call.")
    admin_without_key: bool = option(
        False, "Without --keys, clients on this machine may use admin routes.", flag="--admin-without-key"
    )
    folders: tuple[Path, ...] = option((), "Requests may name files in it. Repeatable.", flag="--allow-folder")
    weights: Path | None = option(
        None, "Admin keys may update the weights from checkpoints in it.", flag="--weights-folder"
    )
    fetch_urls: bool = option(True, "Requests may name http(s) URLs.")
    webhook_secret: Path | None = option(None, "File with the webhook signing secret (whsec_…).")
    webhook_private: bool = option(False, "Webhooks may go to private addresses.")
    max_priority: int = 0  # of callers without a key of their own
    enhance: EnhanceSettings = field(default_factory=EnhanceSettings)
    retention: Retention = field(default_factory=Retention)
    worker: WorkerRules = field(default_factory=WorkerRules)
    limits: BodyLimits = field(default_factory=BodyLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)

    @cached_property  # a path is looked up on the disk, and every reply has the name
    def model_name(self) -> str:
        """What callers see and may send as `model`: no path leaves the server."""
        is_path = self.model.startswith((".", "/", "~")) or Path(self.model).exists()
        return Path(self.model).expanduser().resolve().name if is_path else self.model

    def engine(self, device: str) -> dict[str, object]:
        """What the worker on `device` is told to load, for JSON: the fields of `EngineSettings`."""
        shared = {known.name: getattr(self, known.name) for known in fields(ModelSettings)}
        return EngineSettings(**shared, device=device).to_json()
