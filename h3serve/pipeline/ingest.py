"""The request's media: fetched, probed, planned, then decoded at their final sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from h3serve.core import segments
from h3serve.core.estimate_work import RELEASED_MODEL, ModelSize
from h3serve.core.geometry import FPS, RELEASED_SIZES, SizeRules, reference_video_size
from h3serve.core.limits import LIMITS, Limits
from h3serve.core.media_probe import MediaProbe, seconds_used
from h3serve.core.plan import Plan
from h3serve.core.request import GenerationRequest
from h3serve.core.request_values import Condition
from h3serve.media.read.audio import load_audio
from h3serve.media.read.image import load_image, prepare_keyframe, prepare_reference_image
from h3serve.media.read.probe import probe_media
from h3serve.media.read.video import Frames, decode_clip
from h3serve.media.sources.media_file import ANYWHERE, MediaFile, SourcePolicy
from h3serve.media.sources.open_source import open_source
from h3serve.pipeline.conditions import PreparedCondition

DecodeClip = Callable[..., Frames]  # called like media.read.video.decode_clip


@dataclass(frozen=True)
class Ingest:
    """How media are read: size rules and sizes of the checkpoint, published limits, where files may come from."""

    rules: SizeRules = RELEASED_SIZES
    model: ModelSize = RELEASED_MODEL
    limits: Limits = LIMITS
    sources: SourcePolicy = ANYWHERE
    decode: DecodeClip = decode_clip  # another one may share the pixels between ranks

    def plan(self, request: GenerationRequest) -> Plan:
        """The plan alone: media are fetched and probed, not decoded."""
        with ExitStack() as stack:
            return self._plan(request, [probe_media(f) for f in self._open(request, stack)])

    def read(
        self, request: GenerationRequest, between: Callable[[], None] = lambda: None
    ) -> tuple[Plan, list[PreparedCondition]]:
        """Plan and prepared conditions in packed order; copies of fetched media are gone on return.

        `between` is called before each file is decoded and may raise Cancelled. Raises MediaError or
        RequestError naming the condition.
        """
        with ExitStack() as stack:
            files = self._open(request, stack)
            probes = [probe_media(file) for file in files]
            plan = self._plan(request, probes)
            prepared = []
            for condition, file, probe in _packed_order(request, files, probes):
                between()
                prepared.append(self._prepare(request, condition, file, probe, plan))
        return replace(plan, conditions=tuple(item.segment for item in prepared)), prepared

    def _open(self, request: GenerationRequest, stack: ExitStack) -> list[MediaFile]:
        return [
            stack.enter_context(open_source(c.uri, self.sources, field=f"conditions[{i}]"))
            for i, c in enumerate(request.conditions)
        ]

    def _plan(self, request: GenerationRequest, probes: Sequence[MediaProbe]) -> Plan:
        return Plan.resolve(request, probes, rules=self.rules, limits=self.limits, model=self.model)

    def _prepare(
        self, request: GenerationRequest, condition: Condition, file: MediaFile, probe: MediaProbe, plan: Plan
    ) -> PreparedCondition:
        if condition.role == "keyframe":
            first = condition is request.keyframes[0]
            pixels = prepare_keyframe(load_image(file), plan.canvas, first=first)
            return PreparedCondition(segments.keyframe(plan.canvas, is_last=condition.frame_index == -1), pixels[None])
        if condition.type == "image":
            pixels = prepare_reference_image(
                load_image(file), request.reference_resize_mode, plan.canvas, field=file.field, rules=self.rules
            )
            return PreparedCondition(segments.image((pixels.shape[1], pixels.shape[0])), pixels[None])
        if condition.type == "audio":
            wave = load_audio(file, min(probe.audio_seconds, plan.seconds))
            return PreparedCondition(segments.audio(wave.shape[1]), wave=wave)
        return self._clip(condition, file, probe, plan)

    def _clip(self, condition: Condition, file: MediaFile, probe: MediaProbe, plan: Plan) -> PreparedCondition:
        start = condition.start_time_seconds or 0.0
        size = reference_video_size(probe.ratio, self.rules)
        frames = self.decode(
            file, size, min(plan.frames, round(seconds_used(condition, probe) * FPS)), start_seconds=start
        )
        heard = min(probe.audio_seconds - start, plan.seconds)
        wave = load_audio(file, heard, start_seconds=start, soundtrack=True) if probe.has_audio and heard > 0 else None
        samples = 0 if wave is None else wave.shape[1]
        return PreparedCondition(segments.video(size, len(frames), samples), frames, wave)


def _packed_order(
    request: GenerationRequest, files: Sequence[MediaFile], probes: Sequence[MediaProbe]
) -> list[tuple[Condition, MediaFile, MediaProbe]]:
    """Keyframes first, then references in request order."""
    triples = list(zip(request.conditions, files, probes, strict=True))
    return sorted(triples, key=lambda triple: triple[0].role != "keyframe")
