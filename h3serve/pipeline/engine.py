"""A loaded model: its networks, on one device, and what they can be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from h3serve.core.errors import RequestError
from h3serve.core.estimate_memory import Capacity, work_of
from h3serve.core.estimate_work import RELEASED_MODEL, ModelSize
from h3serve.core.geometry import SizeRules
from h3serve.core.limits import PARTITION_OF, Partition, Quality, Task
from h3serve.core.plan import Plan
from h3serve.core.prompt import check_length
from h3serve.core.request import GenerationRequest
from h3serve.core.settings import (
    EngineSettings,
    Partitions,
    cache_folder,
    check_adapter_folder,
    check_quality,
    one_of,
    partitions_of,
)
from h3serve.core.version import VERSION
from h3serve.core.video_record import video_record
from h3serve.models.audio_vae.audio_vae import AudioVAE
from h3serve.models.quality import QUALITIES, has_float8, use_quality, use_vae_quality
from h3serve.models.text_encoder.text_encoder import TextEncoder
from h3serve.models.text_encoder.tokenizer import Tokenizer
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.models.video_vae.tile_batches import tiles_of
from h3serve.models.video_vae.video_vae import VideoVAE, to_compute_dtype
from h3serve.pipeline.schedule import default_times
from h3serve.runtime.adaln.adaln_cache import AdaLN
from h3serve.runtime.adaln.modulation_tables import Direct, ModulationSource
from h3serve.runtime.adapters.adapter_shelf import AdapterShelf
from h3serve.runtime.adapters.live_adapters import LiveAdapters
from h3serve.runtime.checkpoint_identity import describe_checkpoint, identities_in, maker_of
from h3serve.runtime.encoding_cache import EncodingCache, folder_for
from h3serve.runtime.loading import How, build_tiers, place
from h3serve.runtime.machine import has_float8_units, make_current, resolve_device, resolve_dtype
from h3serve.runtime.memory_meter import PeakMeter
from h3serve.runtime.offload.placement import OffloadedNetwork, Placement
from h3serve.runtime.offload.policy import Choice, capacity_of, choose_for, held_as, resident_beside
from h3serve.runtime.parallel.sharding import ONE, Share
from h3serve.runtime.weight_updates import Updates
from h3serve.weights.files.checkpoint_folder import ModelFolder
from h3serve.weights.formats.checksums import read_size_rules
from h3serve.weights.formats.entry_rows import everything
from h3serve.weights.formats.opened_component import Opened, open_checkpoint
from h3serve.weights.formats.tokenizer_files import open_tokenizer
from h3serve.weights.locate import locate

ENCODERS = ("text_encoder", "video_vae", "audio_vae")


@dataclass(frozen=True)
class Engine:
    """Networks in their dtypes on `device`; one denoiser per loaded partition, all else shared."""

    tokenizer: Tokenizer
    text_encoder: TextEncoder
    video_vae: VideoVAE
    audio_vae: AudioVAE
    denoisers: Mapping[Partition, Denoiser]
    sigma_shifts: Mapping[Partition, tuple[float, float]]
    device: torch.device
    quality: Quality
    rules: SizeRules
    placements: Mapping[nn.Module, Placement[nn.Module]] = field(default_factory=dict)  # of networks not always there
    modulations: Mapping[Partition, ModulationSource] = field(default_factory=dict)  # others: straight from the network
    adapters: Mapping[Partition, LiveAdapters] = field(default_factory=dict)
    encodings: EncodingCache = field(default_factory=EncodingCache)
    cache: Path | None = None  # folder for what is made once and kept; None: nothing was loaded from a checkpoint
    carries_request: bool = False  # its MP4 files say how they were made
    checkpoints: dict[Partition, dict[str, Any]] = field(default_factory=dict)  # what they say of the weights
    size: ModelSize = RELEASED_MODEL
    choice: Choice | None = None  # why the networks are placed as they are
    peaks: PeakMeter = field(default_factory=lambda: PeakMeter(torch.device("cpu")))

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Tasks that the loaded partitions can do."""
        return tuple(task for task, partition in PARTITION_OF.items() if partition in self.denoisers)

    def check_request(self, request: GenerationRequest) -> None:
        """RequestError for a task or a tier that this engine does not serve, or a prompt of too many tokens."""
        if request.task not in self.tasks:
            partition = PARTITION_OF[request.task]
            allowed = f"the loaded weights do {', '.join(self.tasks)}; this task needs partition {partition}"
            raise RequestError("task", request.task, allowed)
        check_quality(request.quality, quality=self.quality, quantize="fp8" if self.float8 else "none")
        check_length(len(self.tokenizer.ids(request.prompt)), request.prompt)

    @property
    def float8(self) -> bool:
        """Whether the transformers' linear layers are of 8 bits."""
        return all(has_float8(denoiser) for denoiser in self.denoisers.values())

    @property
    def capacity(self) -> Capacity | None:
        """What requests may need on this engine's GPU; None on a CPU, where nothing is refused."""
        if self.choice is None or self.device.type != "cuda":
            return None
        return capacity_of(self.choice, tiles_of(self.video_vae))

    def use_adapters(self, request: GenerationRequest, plan: Plan) -> None:
        """Puts the request's adapters on its transformer, and takes all others off.

        RequestError names an adapter that cannot be had, CapacityError says that `plan` does not fit beside them.
        """
        live = self.adapters.get(PARTITION_OF[request.task])
        if live is not None:
            chosen = live.choose(request.adapters)
            self.check_plan(plan, live.num_bytes(chosen))
            live.use(chosen)
        elif request.adapters:
            raise RequestError("adapters", f"{len(request.adapters)} given", "this engine was not loaded from files")

    def check_plan(self, plan: Plan, adapters: int = 0) -> None:
        """CapacityError, with the numbers, for a request that cannot fit on this engine's GPU beside its adapters."""
        if (capacity := self.capacity) is not None:
            capacity.check(plan, adapters=adapters)

    def make_room(self, task: Task, plan: Plan) -> None:
        """Of a streamed transformer as many blocks stay as there is room for beside `plan`'s work and adapters."""
        placement = self.placements.get(self.denoiser(task))
        if self.choice is not None and self.choice.modes["transformer"] == "stream":
            assert isinstance(placement, OffloadedNetwork)
            work, live = work_of(plan, tiles=tiles_of(self.video_vae)), self.adapters[PARTITION_OF[task]]
            placement.set_resident_blocks(
                resident_beside(self.choice, work, adapters=live.num_bytes(live.current or ()))
            )

    def record(self, request: GenerationRequest) -> str | None:
        """What the MP4 of `request`, which runs now, says of how it is made; None: nothing."""
        if not self.carries_request:
            return None
        partition = PARTITION_OF[request.task]
        live = self.adapters.get(partition)
        return video_record(
            request,
            version=VERSION,
            quality=self.quality,
            checkpoint=self.checkpoints.get(partition),
            adapters=[adapter.describe() for adapter in live.current or ()] if live else [],
        )

    def on_device(self, network: nn.Module) -> AbstractContextManager[object]:
        """Inside the `with` block the network's weights are on the device."""
        return self.placements.get(network, nullcontext())

    def modulation(self, task: Task) -> ModulationSource:
        """Where the task's transformer gets its modulation from."""
        partition = PARTITION_OF[task]
        return self.modulations.get(partition) or Direct(self.denoisers[partition].modulation)

    def updates(self, partition: Partition) -> Updates:
        """Takes new weights for a partition's transformer, or refuses them before a byte is written."""
        denoiser, tiers = self.denoisers[partition], self.modulations.get(partition)
        if not isinstance(tiers, AdaLN) or self.cache is None:
            raise RequestError("partition", partition, "its weights were not loaded from a checkpoint")
        return Updates(self.placements[denoiser], tiers, partition, self.device, self.cache)

    def stats(self, task: Task) -> dict[str, Any]:
        """Counters since the start: modulation tiers of the task's transformer, and encodings; its adapters now."""
        source, encodings = self.modulations.get(PARTITION_OF[task]), self.encodings
        counts = {name: getattr(encodings, name) for name in ("hits", "misses", "evictions", "disk_hits", "num_bytes")}
        live = self.adapters.get(PARTITION_OF[task])
        told = [adapter.describe() for adapter in live.current or ()] if live else []
        return {
            "encodings": counts,
            **({"modulation": source.stats()} if isinstance(source, AdaLN) else {}),
            **({"adapters": told} if told else {}),
        }

    @torch.inference_mode()
    def prepare(self) -> None:
        """Has the modulation of the default schedules ready, so that the first request does not wait for it."""
        for partition, denoiser in self.denoisers.items():
            source, times = self.modulations.get(partition), default_times(partition, self.sigma_shifts[partition])
            if source is not None:
                with self.on_device(denoiser), source.schedule(times):
                    pass

    def denoiser(self, task: Task) -> Denoiser:
        """The denoiser whose weights are for `task`."""
        return self.denoisers[PARTITION_OF[task]]

    def shifts(self, task: Task) -> tuple[float, float]:
        """(video, audio) flow shifts of the task's checkpoint."""
        return self.sigma_shifts[PARTITION_OF[task]]


def load_engine(settings: EngineSettings, share: Share = ONE) -> Engine:
    """Loads every component from disk, strictly; of a replica of several ranks, this rank's share.

    Raises RequestError for a setting that cannot be had, CheckpointError for the files.
    """
    device = share.device or resolve_device(settings.device)
    make_current(device)
    dtype = resolve_dtype(settings.dtype, device)
    _check_settings(settings, device)
    cache, partitions = cache_folder(settings.cache), partitions_of(settings.partition)
    adapter_folder = check_adapter_folder(settings.adapter_folder)
    folders = {p: locate_model(settings, p) for p in partitions}
    opened = {p: open_checkpoint(folder, p) for p, folder in folders.items()}
    shared = partitions[0]  # the partitions' other components are the same files
    # All that can be refused is, before the first weights are read.
    tokenizer = open_tokenizer(folders[shared], shared, opened[shared]["text_encoder"].config)
    rules = read_size_rules(folders[shared].partition(shared).folder)
    float8 = settings.float8
    held = held_as(opened, dtype, float8=float8)
    choice = choose_for(
        settings.residency,
        held,
        device=device,
        quality=settings.quality,
        divided={} if float8 else share.divided,
        smallest=share.smallest,
        float8=float8,
    )
    if settings.text_encoder == "sharded" and choice.modes["text_encoder"] != "resident":
        raise RequestError(
            "text_encoder", "sharded", "auto or replicated: only weights that stay on the GPU are divided"
        )
    encodings = _encodings(settings, opened[shared], share, made=(maker_of(device), dtype))
    peaks = PeakMeter(device, share.largest)
    placements: dict[nn.Module, Placement[nn.Module]] = {}

    def load(name: str, partition: Partition = shared) -> nn.Module:
        mode = choice.modes[name]
        shard = None if float8 else share.shard(name, resident=mode == "resident")  # 8-bit layers are whole everywhere
        how = How(mode, choice.in_files, choice.resident_blocks, shard)
        stored = torch.bfloat16 if name == "video_vae" and device.type == "cuda" else dtype
        placement = place(opened[partition][name], how, device=device, dtype=stored, float8=float8)
        placements[placement.module] = placement
        return placement.module

    text_encoder, video_vae, audio_vae = load("text_encoder"), load("video_vae"), load("audio_vae")
    assert isinstance(text_encoder, TextEncoder)
    assert isinstance(video_vae, VideoVAE) and isinstance(audio_vae, AudioVAE)
    denoisers = {p: _denoiser(load("transformer", p), settings.quality, device) for p in partitions}
    use_vae_quality(video_vae, settings.quality, device)
    share.connect(denoisers.values(), video_vae)
    tiers = {
        p: build_tiers(
            denoisers[p],
            opened[p]["transformer"],
            device=device,
            cache=cache,
            smallest=share.smallest,
            writes=share.is_first,
        )
        for p in partitions
    }
    shard = None if float8 else share.shard("transformer", resident=choice.modes["transformer"] == "resident")
    adapters = {
        p: LiveAdapters(
            denoisers[p],
            AdapterShelf(opened[p]["transformer"], folder=adapter_folder),
            device=device,
            tiers=tiers[p],
            part_of=shard(opened[p]["transformer"].build()) if shard else everything,
        )
        for p in partitions
    }
    peaks.load_done()
    return Engine(
        tokenizer=tokenizer,
        text_encoder=text_encoder,
        video_vae=video_vae,
        audio_vae=audio_vae,
        denoisers=denoisers,
        sigma_shifts={p: _shifts(folders[p], p) for p in partitions},
        device=device,
        quality=settings.quality,
        rules=rules,
        placements=placements,
        modulations=tiers,
        adapters=adapters,
        encodings=encodings,
        cache=cache,
        carries_request=settings.carry_request,
        checkpoints={p: describe_checkpoint(p, opened[p]["transformer"].index, settings.model) for p in partitions},
        choice=choice,
        size=held.model,
        peaks=peaks,
    )


def _encodings(settings: EngineSettings, opened: Opened, share: Share, *, made: tuple[Any, ...]) -> EncodingCache:
    """On disk by what makes the encodings: weights, and all that decides how they round."""
    if settings.encodings_cache is None:
        return EncodingCache(all_have=share.all_have)
    base = Path(settings.encodings_cache).expanduser()
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError("encodings_cache", str(base), f"a folder that can be written ({error.strerror})") from None
    weights = [opened[name].index for name in ENCODERS]
    how = (*made, settings.quality, settings.float8, share.divided.get("text_encoder", 1))
    return EncodingCache(
        folder=folder_for(base, weights, identities_in(cache_folder(settings.cache)), *how),
        writes=share.is_first,
        all_have=share.all_have,
    )


def locate_model(settings: EngineSettings, partition: Partition) -> ModelFolder:
    """The checkpoint that these settings name."""
    return locate(settings.model, partition, revision=settings.revision, cache=settings.cache)


def first_partition(settings: EngineSettings) -> Partition:
    """The partition whose folder also gives what both share."""
    return partitions_of(settings.partition)[0]


def for_device(vae: VideoVAE, device: torch.device) -> VideoVAE:
    """The release decodes with float16 matrices on a GPU and encodes in float32; a CPU does all in float32."""
    return vae if device.type == "cpu" else to_compute_dtype(vae, torch.float16)


def _denoiser(module: nn.Module, quality: Quality, device: torch.device) -> Denoiser:
    assert isinstance(module, Denoiser)
    use_quality(module.transformer, quality, device)
    return module


def _shifts(folder: ModelFolder, partition: Partition) -> tuple[float, float]:
    shifts = folder.partition(partition).shifts
    return shifts.video, shifts.audio


def _check_settings(settings: EngineSettings, device: torch.device) -> None:
    if settings.partition not in get_args(Partitions):
        raise RequestError("partition", settings.partition, one_of(Partitions))
    if settings.quality not in QUALITIES:
        raise RequestError("quality", settings.quality, f"this build has {' and '.join(QUALITIES)}")
    if settings.float8 and device.type == "cuda" and not has_float8_units(device):
        raise RequestError("quantize", "fp8", f"{torch.cuda.get_device_name(device)} has no 8-bit matrix units")
