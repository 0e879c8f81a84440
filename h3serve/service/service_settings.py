"""Every option of the service, once, with its default; the command line reads this class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from h3serve.core.limits import Partition, Quality
from h3serve.core.settings import Quantize

GIB = 2**30
DAY_S = 86400.0


@dataclass(frozen=True)
class Retention:
    """Bounds in seconds and bytes; None keeps without bound. Records outlive their files."""

    files_s: float | None = 7 * DAY_S
    files_bytes: int | None = None
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

    most: int = 4000  # fewer where the system's limit of open files is lower
    streams: int = 100  # event streams of one API key
    header_s: float = 20.0  # for a request's header
    body_s: float = 30.0  # for its body, and as long again as it takes at `body_rate`
    body_rate: float = 16 * 2**10  # bytes a second
    ignored: int = 256 * 2**20  # bytes of a body that is sent on though its request was refused
    send_s: float = 60.0  # without room to send: the client does not read


@dataclass(frozen=True)
class ServiceSettings:
    """How a server runs. `model` is a folder, a hub id or "demo"."""

    model: str
    data: Path = Path("h3serve-data")
    database: str | None = None  # a PostgreSQL URL; None: SQLite in the data folder
    host: str = "127.0.0.1"
    port: int = 8000
    allowed_hosts: tuple[str, ...] = ()  # names that requests may call this server, beside loopback and `host`
    partition: Partition | Literal["both"] = "fl2va"
    devices: tuple[str, ...] = ("auto",)  # one worker, with its own copy of the model, on each
    dtype: str = "auto"
    quality: Quality = "lossless"
    quantize: Quantize = "auto"
    residency: str = "auto"
    cache: Path | None = None  # folder where workers keep what is made once or fetched
    encodings_cache: Path | None = None  # folder where workers keep encoded prompts and references
    revision: str | None = None
    aliases: tuple[str, ...] = ()  # other names that callers may send as `model`
    gpus: int = 1  # of one worker, which make one clip together
    ulysses: int | None = None
    tp: int | None = None
    text_encoder: str = "auto"
    ray: str | None = None  # workers run on this Ray cluster (an address, or auto), one per entry of `devices`
    max_queued: int = 100
    drain_s: float = 600.0
    keys: Path | None = None  # file of hashed API keys; None: anybody may call
    admin_without_key: bool = False  # without keys, clients on this machine may use the admin routes
    folders: tuple[Path, ...] = ()  # conditions may name files below these
    weights: Path | None = None  # weight updates may name checkpoints below this folder; None: no updates
    fetch_urls: bool = True  # conditions may name http(s) URLs
    webhook_secret: Path | None = None  # file with the signing secret; None: no webhooks
    webhook_private: bool = False  # deliver to private addresses too
    max_priority: int = 0  # of callers without a key of their own
    retention: Retention = field(default_factory=Retention)
    worker: WorkerRules = field(default_factory=WorkerRules)
    limits: BodyLimits = field(default_factory=BodyLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)

    @cached_property  # a path is looked up on the disk, and every reply has the name
    def model_name(self) -> str:
        """What callers see and may send as `model`: no path leaves the server."""
        is_path = self.model.startswith((".", "/", "~")) or Path(self.model).exists()
        return Path(self.model).expanduser().resolve().name if is_path else self.model

    def engine(self, device: str) -> Mapping[str, object]:
        """What the worker on one device is told to load: the fields of core's `EngineSettings`."""
        return {
            "model": self.model,
            "partition": self.partition,
            "device": device,
            "dtype": self.dtype,
            "quality": self.quality,
            "quantize": self.quantize,
            "residency": self.residency,
            "cache": None if self.cache is None else str(self.cache),
            "encodings_cache": None if self.encodings_cache is None else str(self.encodings_cache),
            "revision": self.revision,
            "gpus": self.gpus,
            "ulysses": self.ulysses,
            "tp": self.tp,
            "text_encoder": self.text_encoder,
        }
