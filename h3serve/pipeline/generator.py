"""`Generator`: the one path from a request to a video, offline and online."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from h3serve.core.limits import Partition
from h3serve.core.plan import Plan
from h3serve.core.request import GenerationRequest, parse_request
from h3serve.core.settings import EngineSettings
from h3serve.media.write.outputs import check_output
from h3serve.pipeline.conditions import PreparedCondition, encode_conditions
from h3serve.pipeline.decode import Latents, decode_audio, decode_video, to_latents
from h3serve.pipeline.encode import encode_text
from h3serve.pipeline.engine import Engine, load_engine
from h3serve.pipeline.generation_progress import Meter, OnProgress
from h3serve.pipeline.generation_result import GenerationResult
from h3serve.pipeline.ingest import Ingest
from h3serve.pipeline.intermediates import Intermediates
from h3serve.pipeline.mp4_stream import is_mp4, mp4_sink
from h3serve.pipeline.noise import draw, keep_noise, replace
from h3serve.pipeline.packing import keep_layout, pack, video_to_rows
from h3serve.pipeline.predict import make_predict, prepare_static
from h3serve.pipeline.prompt_builder import present_request
from h3serve.pipeline.replica import Alone, Replica, lead, shape_of, share_of
from h3serve.pipeline.schedule import all_step_times, make_schedules
from h3serve.pipeline.solver import SOLVERS, denoise
from h3serve.pipeline.weight_update_request import Wanted, update_weights
from h3serve.runtime.machine import make_current
from h3serve.runtime.offload.copy_to_host import own_stream, started


class Generator:
    """A loaded model that makes clips. One generation at a time; not thread-safe."""

    def __init__(self, engine: Engine, ingest: Ingest | None = None, *, replica: Replica | None = None) -> None:
        self.engine = engine
        self.replica = replica or Alone()
        self.ingest = dataclasses.replace(ingest or Ingest(engine.rules, engine.size), decode=self.replica.decode_clip)

    @staticmethod
    def from_pretrained(model: str | Path, **settings: Any) -> Generator:
        """Loads `model`: a folder, a hub id, or "demo". `settings` are the fields of `EngineSettings`.

        Raises CheckpointError for files that are missing, damaged or of the wrong partition, and
        RequestError for a setting this build does not have. With `gpus` above 1 other processes are
        started, which `close` ends.
        """
        wanted = EngineSettings(model=str(model), **settings)
        choice = shape_of(wanted)
        if choice.shape.size == 1:
            return Generator(load_engine(wanted))
        member = lead(wanted, choice)
        try:
            with member.together.request():
                engine = load_engine(wanted, share_of(wanted, member.ranks))
        except BaseException:
            member.close()
            raise
        return Generator(engine, replica=member)

    def close(self) -> None:
        """End the other ranks, if there are any."""
        self.replica.close()

    def forget(self) -> None:
        """Drop encoded prompts and references: the next request encodes its own, on all ranks."""
        self.engine.encodings.clear()

    def update_weights(
        self,
        source: str | Path,
        *,
        partition: Partition | None = None,
        tensors: str | Path | None = None,
        only_check: bool = False,
    ) -> dict[str, Any]:
        """New weights for a transformer, or refused with nothing changed: `update.update_weights`.

        Not while a generation runs.
        """
        wanted = Wanted(str(source), partition, None if tensors is None else str(tensors), only_check)
        return update_weights(self.engine, self.replica, wanted)

    def warm_up(self, short_edge: int = 256) -> None:
        """Makes a small video and encodes a few frames, so that the first request does not wait for kernels to compile.

        At 256 pixels the video VAE's tiles have their full size. Several ranks encode together, in requests only.
        """
        engine = self.engine
        if "t2va" in engine.tasks:
            target = {"short_edge": short_edge, "duration_seconds": 4}
            self.generate({"task": "t2va", "prompt": "warm up", "target": target, "num_inference_steps": 1})
        if not isinstance(self.replica, Alone):
            return
        with engine.on_device(engine.video_vae), torch.inference_mode():
            for frames in (1, engine.video_vae.config.clip_length):
                engine.video_vae.encode(torch.randn(1, 3, frames, short_edge, short_edge, device=engine.device))

    def generate(
        self,
        request: GenerationRequest | Mapping[str, Any],
        on_progress: OnProgress | None = None,
        noise: Mapping[str, Any] | None = None,
        *,
        keep: Iterable[str] = (),
        output: str | Path | None = None,
    ) -> GenerationResult:
        """One video with its sound, shape and types as in `GenerationResult`.

        `noise` replaces the drawn noise (names of `noise.Noise`); `keep` asks for intermediates
        (groups of intermediates.py); `output` is a file as in `GenerationResult.save`, and an MP4 is encoded
        while frames are still being decoded. Raises RequestError, MediaError, OutputError or
        whatever `on_progress` raises (Cancelled); then there is no output file.
        """
        wanted = parse_request(request)
        kept = Intermediates.of(keep)
        if output is not None:
            check_output(output)
        self.engine.check_request(wanted)
        make_current(self.engine.device)  # this may be another thread than the one that loaded
        meter = Meter(self.engine.peaks, on_progress)
        with self.replica.request(wanted):
            with meter.stage("read media"):
                plan, prepared = self.ingest.read(wanted, meter.pulse)
                self.engine.check_plan(plan)
                self.engine.use_adapters(wanted, plan)
            return self.run(wanted, plan, prepared, meter=meter, noise=noise or {}, kept=kept, output=output)

    @torch.inference_mode()
    def run(
        self,
        request: GenerationRequest,
        plan: Plan,
        prepared: Sequence[PreparedCondition],
        *,
        meter: Meter,
        noise: Mapping[str, Any],
        kept: Intermediates,
        output: str | Path | None = None,
    ) -> GenerationResult:
        """The same from prepared media on: `prepared` in packed order, `plan` with their segments."""
        engine, target = self.engine, plan.target
        segments = [item.segment for item in prepared]
        schedules = make_schedules(request, engine.shifts(request.task), kept)
        drawn = self.replica.share_noise(replace(draw(request.seed, segments, target), dict(noise)))
        keep_noise(drawn, kept)
        with meter.stage("encode text"):
            shown = present_request(request, prepared, engine.tokenizer, kept)
            text_states = encode_text(engine, shown.inputs, meter.pulse)
            kept.put("text", text_states=text_states)
        with meter.stage("encode conditions"):
            conditions = encode_conditions(
                prepared, engine, drawn, levels=request.condition_levels, kept=kept, between=meter.pulse
            )
        layout = pack(shown.tags.numpy(), segments, target)
        keep_layout(layout, kept)
        denoiser = engine.denoiser(request.task)
        engine.make_room(request.task, plan)
        with meter.stage("denoise"), engine.on_device(denoiser):
            static = prepare_static(denoiser.transformer, text_states.to(engine.device), layout)
            times = all_step_times(schedules, layout, request.condition_levels)
            kept.put("schedule", row_timesteps=[t.values[t.slots[layout.kinds]] for t in times])
            start = video_to_rows(drawn.video.to(engine.device)), drawn.audio.to(engine.device)
            with engine.modulation(request.task).schedule([t.values for t in times]) as scheduled:
                predict = make_predict(denoiser.transformer, scheduled, static, conditions, layout, times, kept)
                rows = denoise(predict, start, schedules, meter.step, SOLVERS[request.solver])
                latents = to_latents(rows, plan, kept)
        if not self.replica.leads:
            return self._help(plan, latents, meter, kept)
        with engine.on_device(engine.video_vae):
            with meter.stage("decode audio", settle=False):
                chunks = started(engine.video_vae.decode(latents.video))  # sound is decoded beside the first frames
                with own_stream(engine.device), engine.on_device(engine.audio_vae):
                    audio = decode_audio(engine.audio_vae, latents)
            record = engine.record(request)
            with meter.stage("decode video"), mp4_sink(output, plan, audio, record) as on_chunk:
                video = decode_video(chunks, plan, meter, on_chunk)
        meter.peak_bytes = self.replica.peaks(meter.peak_bytes)
        stats = {**meter.stats(), **engine.stats(request.task), **self.replica.describe()}
        stats |= {"plan": plan.describe(), "text_tokens": len(shown.tags), "solver": request.solver}
        stats["sigmas"] = dict(zip(("video", "audio"), (s.describe() for s in schedules), strict=True))
        result = GenerationResult(plan, video, audio, stats, kept.finished(), record)
        if output is not None and not is_mp4(output):
            result.save(output)
        return result

    def _help(self, plan: Plan, latents: Latents, meter: Meter, kept: Intermediates) -> GenerationResult:
        """A rank that does not lead computes its share of the frames; the result is another's."""
        with meter.stage("decode video"), self.engine.on_device(self.engine.video_vae):
            for _ in self.engine.video_vae.decode(latents.video):
                pass
        meter.peak_bytes = self.replica.peaks(meter.peak_bytes)
        nothing = np.zeros((0, 0, 0, 3), np.uint8), np.zeros((2, 0), np.float32)
        return GenerationResult(plan, *nothing, meter.stats(), kept.finished())
