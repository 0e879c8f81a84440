"""What a generator needs to know of other ranks: nothing with one rank, everybody's requests with several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, get_args

import torch

from h3serve.core.errors import RequestError, WorkerError
from h3serve.core.request import GenerationRequest
from h3serve.core.settings import EncoderShare, EngineSettings, one_of
from h3serve.media.read.video import Frames, decode_clip, decode_into
from h3serve.media.sources.media_file import MediaFile
from h3serve.pipeline.engine import first_partition, locate_model
from h3serve.pipeline.noise import Noise
from h3serve.runtime.machine import measure, resolve_device
from h3serve.runtime.parallel.joint_request import Together
from h3serve.runtime.parallel.parallel_layout import ShapeChoice, bytes_per_rank, choose_shape, encoder_parts
from h3serve.runtime.parallel.process_group import Ranks, open_store
from h3serve.runtime.parallel.rank_launch import RankProcesses
from h3serve.runtime.parallel.sharding import RankShare
from h3serve.runtime.parallel.shared_decode import shared_decode
from h3serve.weights.formats.opened_component import open_component

STOP = "stop"
UPDATE = "update"
RANK_PROCESS = "h3serve.pipeline.rank_process"


class Replica(Protocol):
    """The ranks that make one video together."""

    @property
    def leads(self) -> bool:
        """True on the rank that talks to the caller and holds the result."""

    @property
    def is_broken(self) -> bool:
        """A rank is gone: no further request can be made."""

    def request(self, request: GenerationRequest) -> Any:
        """A context in which all ranks work on `request`; an error of one is raised on all."""

    def update(self, wanted: dict[str, Any]) -> Any:
        """A context in which all ranks make the same weight update; an error of one is raised on all."""

    def barrier(self) -> None:
        """Waits until every rank has come this far."""

    def share_noise(self, noise: Noise) -> Noise:
        """The first rank's noise, on every rank."""

    def decode_clip(self, file: MediaFile, canvas: tuple[int, int], frames: int, *, start_seconds: float) -> Frames:
        """`media.read.video.decode_clip`, once per host."""

    def peaks(self, own: dict[str, int]) -> dict[str, int]:
        """Bytes per stage, the most of any rank."""

    def describe(self) -> dict[str, Any]:
        """How it is divided and why, for the statistics."""

    def close(self) -> None:
        """End the other ranks."""


class Alone:
    """A replica of one rank."""

    leads, is_broken = True, False
    decode_clip = staticmethod(decode_clip)

    @contextmanager
    def request(self, request: GenerationRequest) -> Iterator[None]:
        """Nobody to tell."""
        del request
        yield

    @contextmanager
    def update(self, wanted: dict[str, Any]) -> Iterator[None]:
        """Nobody to tell."""
        del wanted
        yield

    def barrier(self) -> None:
        """Nobody to wait for."""

    def share_noise(self, noise: Noise) -> Noise:
        """Its own."""
        return noise

    def peaks(self, own: dict[str, int]) -> dict[str, int]:
        """Its own."""
        return own

    def describe(self) -> dict[str, Any]:
        """Nothing to tell."""
        return {}

    def close(self) -> None:
        """Nobody to end."""


class Member:
    """One of several ranks; the first one also holds the processes of the others."""

    def __init__(self, ranks: Ranks, others: RankProcesses | None = None, *, why: str = "") -> None:
        self.ranks, self.others, self.why = ranks, others, why
        self.together = Together(ranks)

    @property
    def leads(self) -> bool:
        """True on rank 0."""
        return self.ranks.leads

    @property
    def is_broken(self) -> bool:
        """Known as soon as a process is gone, between requests too."""
        return self.together.broken

    def request(self, request: GenerationRequest) -> AbstractContextManager[None]:
        """On the first rank: announce the request and work on it with the others."""
        return self._together(request.model_dump(mode="json"))

    def update(self, wanted: dict[str, Any]) -> AbstractContextManager[None]:
        """On the first rank: announce the update and make it with the others."""
        return self._together({UPDATE: wanted})

    @contextmanager
    def _together(self, message: dict[str, Any]) -> Iterator[None]:
        if self.is_broken:
            raise WorkerError("this replica has lost a rank; it has to be started anew")
        if self.leads:
            self.together.announce(message)
        with self.together.request():
            yield

    def barrier(self) -> None:
        """Until all are here."""
        self.ranks.world.gather_json({})

    def share_noise(self, noise: Noise) -> Noise:
        """Noise may have been given by the caller: the others learn it here."""

        def share(values: torch.Tensor) -> torch.Tensor:
            return self.ranks.world.broadcast(values.contiguous())

        several = {n: tuple(map(share, getattr(noise, n))) for n in ("conditions", "posterior", "sounds")}
        return Noise(share(noise.video), share(noise.audio), **several)

    def decode_clip(self, file: MediaFile, canvas: tuple[int, int], frames: int, *, start_seconds: float) -> Frames:
        """All ranks get the same pixels, decoded once."""

        def fill(out: Frames) -> None:
            decode_into(out, file, start_seconds=start_seconds)

        return shared_decode((frames, canvas[1], canvas[0], 3), fill, self.ranks.world)

    def peaks(self, own: dict[str, int]) -> dict[str, int]:
        """The replica fits where its hungriest rank does."""
        everybody = self.ranks.world.gather_json(own)
        return {stage: max(peaks.get(stage, 0) for peaks in everybody) for stage in own}

    def describe(self) -> dict[str, Any]:
        """`{"ranks": {"ulysses", "tp", "why"}}`."""
        return {"ranks": {"ulysses": self.ranks.shape.ulysses, "tp": self.ranks.shape.tp, "why": self.why}}

    def close(self) -> None:
        """Tell the others to end, and see to it."""
        if not self.together.broken and self.leads:
            self.together.announce(STOP)
        if self.others is not None:
            self.others.end(at_once=self.together.broken)
        self.ranks.close()


def shape_of(settings: EngineSettings) -> ShapeChoice:
    """How a replica with these settings is divided, and why. RequestError or CapacityError if it cannot be."""
    parts = encoder_parts_of(settings)
    if settings.gpus == 1:
        return choose_shape(1, settings.ulysses, settings.tp, heads=1, free=None)
    device = rank_device(settings, 0)
    folder = locate_model(settings, first_partition(settings))
    config = open_component(folder, "transformer", first_partition(settings)).config
    tp = settings.tp
    if settings.float8:  # 8-bit layers are not divided
        if tp not in (None, 1):
            raise RequestError("tp", tp, "1 on layers of 8 bits, which are not divided")
        tp = 1
    return choose_shape(
        settings.gpus,
        settings.ulysses,
        tp,
        heads=config.num_attention_heads,
        free=measure(device).device_free if device.type == "cuda" else None,
        needed=lambda shape: bytes_per_rank(shape, encoder=parts),
    )


def encoder_parts_of(settings: EngineSettings) -> int:
    """In how many parts a replica with these settings holds the text encoder; RequestError if that cannot be."""
    if settings.text_encoder not in get_args(EncoderShare):
        raise RequestError("text_encoder", settings.text_encoder, one_of(EncoderShare))
    if settings.gpus == 1:
        return encoder_parts(settings.text_encoder, 1, heads=1)
    partition = first_partition(settings)
    folder = locate_model(settings, partition)
    heads = open_component(folder, "text_encoder", partition).config.kv_heads
    return encoder_parts(settings.text_encoder, settings.gpus, heads=heads, float8=settings.float8)


def share_of(settings: EngineSettings, ranks: Ranks) -> RankShare:
    """What of the networks a rank holds."""
    return RankShare(ranks, encoder_parts=encoder_parts_of(settings))


def rank_device(settings: EngineSettings, rank: int) -> torch.device:
    """Rank r computes on GPU r; on a CPU all do on the same one."""
    device = resolve_device(settings.device)
    if device.type == "cpu" or settings.gpus == 1:
        return device
    if settings.device not in ("cuda", "auto"):
        raise RequestError("device", settings.device, "several GPUs are used from the first one on: cuda")
    if (count := torch.cuda.device_count()) < settings.gpus:
        raise RequestError("gpus", settings.gpus, f"this machine has {count} usable GPUs")
    return torch.device("cuda", rank)


def lead(settings: EngineSettings, choice: ShapeChoice) -> Member:
    """Start the other ranks and connect; WorkerError if one does not come up."""
    shape = choice.shape
    server, port = open_store()
    arguments = {"settings": settings.to_json(), "ulysses": shape.ulysses, "tp": shape.tp, "port": port}

    def for_rank(rank: int) -> dict[str, object]:
        return {**arguments, "rank": rank, "device": str(rank_device(settings, rank))}

    others = RankProcesses(RANK_PROCESS, for_rank, shape.size)
    try:
        others.await_arrival(server)
        ranks = Ranks(0, shape, port=port, device=rank_device(settings, 0), server=server)
        ranks.open()
    except BaseException:
        others.end(at_once=True)
        raise
    member = Member(ranks, others, why=choice.reason)
    others.watch(member.together.lose)
    return member
