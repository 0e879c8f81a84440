"""The plan: every size of a request, frozen before anything is computed.

`Plan.resolve(request, probes)` is pure arithmetic; it refuses what the media make impossible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from h3serve.core import geometry, segments
from h3serve.core.encoder_tokens import video_blocks, vision_tokens
from h3serve.core.errors import RequestError
from h3serve.core.estimate_seconds import denoise_seconds, request_seconds
from h3serve.core.estimate_work import RELEASED_MODEL, ModelSize, modulation_bytes, step_bytes, step_flops, weight_bytes
from h3serve.core.geometry import FPS, RELEASED_SIZES, SAMPLE_RATE, Size, SizeRules
from h3serve.core.limits import DEFAULT_RATIO, LIMITS, PARTITION_OF, Limits, Partition
from h3serve.core.media_probe import MediaProbe, check_references, seconds_used
from h3serve.core.request import GenerationRequest
from h3serve.core.request_values import Condition
from h3serve.core.segments import Segment

_BYTES_PER_TOKEN = 3.6  # of English prompts, when no tokenizer is at hand
_LABEL_TOKENS = 6  # `<Picture 1>: ` and its like
_TIMESTAMP_TOKENS = 8  # `<0.2 seconds>`


@dataclass(frozen=True)
class Plan:
    """Sizes of one generation. `conditions` are in packed order; rows are packed rows."""

    task: str
    partition: Partition
    canvas: Size
    frames: int
    steps: int
    text_tokens: int
    text_is_exact: bool
    conditions: tuple[Segment, ...]
    target: Segment
    model: ModelSize

    @property
    def seconds(self) -> float:
        """Real length of the video, which is never shorter than the one asked for."""
        return self.frames / FPS

    @property
    def audio_samples(self) -> int:
        """Samples per channel at 32 kHz."""
        return self.target.audio_latents * geometry.SAMPLES_PER_AUDIO_LATENT

    @property
    def condition_rows(self) -> int:
        """Rows that are given and never stepped."""
        return sum(s.rows for s in self.conditions)

    @property
    def rows(self) -> int:
        """S: all rows of the packed sequence, without padding."""
        return self.text_tokens + self.condition_rows + self.target.rows

    @property
    def timesteps(self) -> int:
        """Distinct timesteps of all evaluations, at most: of video, audio, and conditions of either kind."""
        kinds = 2 + any(s.video_rows for s in self.conditions) + any(s.audio_rows for s in self.conditions)
        return self.steps * kinds

    @property
    def flops(self) -> float:
        """Floating-point operations of all evaluations."""
        return self.steps * step_flops(self.rows, self.model)

    @property
    def peak_bytes(self) -> int:
        """Device bytes while denoising, with the transformer alone and the modulation tables of all steps there."""
        weights = weight_bytes(self.model)["transformer"]
        return weights + modulation_bytes(self.timesteps, self.model) + step_bytes(self.rows, self.model)

    def describe(self) -> dict[str, Any]:
        """The plan as JSON-ready values: what `h3serve plan` prints and `POST /v1/plan` answers."""
        return {
            "task": self.task,
            "partition": self.partition,
            "width": self.canvas[0],
            "height": self.canvas[1],
            "frames": self.frames,
            "fps": FPS,
            "seconds": round(self.seconds, 4),
            "audio_samples": self.audio_samples,
            "sample_rate": SAMPLE_RATE,
            "steps": self.steps,
            "rows": {
                "text": self.text_tokens,
                "text_is_exact": self.text_is_exact,
                "conditions": self.condition_rows,
                "audio": self.target.audio_rows,
                "video": self.target.video_rows,
                "total": self.rows,
            },
            "petaflops": float(f"{self.flops / 1e15:.4g}"),
            "denoise_seconds": denoise_seconds(self.rows, self.steps, self.model),
            "request_seconds": request_seconds(
                self.rows,
                self.steps,
                target_rows=self.target.video_rows,
                condition_rows=sum(segment.video_rows for segment in self.conditions),
                model=self.model,
            ),
            "peak_gib": float(f"{self.peak_bytes / 2**30:.4g}"),
        }

    @staticmethod
    def resolve(
        request: GenerationRequest,
        probes: Sequence[MediaProbe] = (),
        *,
        prompt_tokens: int | None = None,
        rules: SizeRules = RELEASED_SIZES,
        limits: Limits = LIMITS,
        model: ModelSize = RELEASED_MODEL,
    ) -> Plan:
        """All sizes for `request`; `probes` match `request.conditions` one to one.

        Without `prompt_tokens` the text length is estimated (`text_is_exact` is False). Raises
        RequestError for media that do not fit their condition or the published limits.
        """
        assert len(probes) == len(request.conditions)
        check_references(request, probes, limits)
        canvas = _canvas(request, probes, rules)
        frames = geometry.aligned_frames(round(_duration(request, probes, limits) * FPS))
        pieces = _condition_segments(request, probes, canvas, frames, rules)
        tokens = prompt_tokens if prompt_tokens is not None else _guess_tokens(request.prompt)
        shown = _shown_tokens(request, probes, canvas, frames, rules)
        return Plan(
            task=request.task,
            partition=PARTITION_OF[request.task],
            canvas=canvas,
            frames=frames,
            steps=request.num_inference_steps,
            text_tokens=tokens + shown,
            text_is_exact=prompt_tokens is not None and not request.conditions,
            conditions=tuple(pieces),
            target=segments.target(canvas, frames),
            model=model,
        )


def _canvas(request: GenerationRequest, probes: Sequence[MediaProbe], rules: SizeRules) -> Size:
    ratio = request.target.aspect_ratio
    if ratio != "auto":
        value = geometry.parse_ratio(ratio)
    elif request.task == "fl2va":  # the first keyframe given, a lone last frame included
        probe = probes[0]
        value = geometry.check_ratio(probe.ratio, f"{probe.width}x{probe.height}", "conditions[0]")
    else:
        value = geometry.parse_ratio(DEFAULT_RATIO)
    return geometry.canvas_size(value, request.target.short_edge, rules)


def _duration(request: GenerationRequest, probes: Sequence[MediaProbe], limits: Limits) -> float:
    """Seconds asked for; without them, the length of the one reference with audio."""
    asked = request.target.duration_seconds
    if asked is not None:
        return asked
    index, condition, probe = next((i, c, p) for i, c, p in _numbered(request, probes) if c.type in _WITH_AUDIO)
    seconds = round(probe.audio_seconds - (condition.start_time_seconds or 0.0), 6)  # 6.1 - 2.1 is 4
    if not probe.has_audio:
        raise RequestError(f"conditions[{index}]", "no audio", "target.duration_seconds is required without audio")
    if not limits.min_seconds <= seconds <= limits.max_seconds:
        allowed = f"the length of the audio sets the target's: {limits.min_seconds:g} to {limits.max_seconds:g} s"
        raise RequestError(f"conditions[{index}]", f"{seconds:.2f} s", allowed)
    return seconds


def _condition_segments(
    request: GenerationRequest, probes: Sequence[MediaProbe], canvas: Size, frames: int, rules: SizeRules
) -> list[Segment]:
    """Keyframes first, then references in request order (spec/packing.md 3.2)."""
    keyframes = [segments.keyframe(canvas, is_last=c.frame_index == -1) for c in request.keyframes]
    references = [(c, p) for _, c, p in _numbered(request, probes) if c.role == "reference"]
    return keyframes + [_reference(request, c, p, canvas, frames, rules) for c, p in references]


def _reference(
    request: GenerationRequest, condition: Condition, probe: MediaProbe, canvas: Size, frames: int, rules: SizeRules
) -> Segment:
    if condition.type == "image":
        size = (probe.width, probe.height)
        return segments.image(geometry.reference_image_size(size, request.reference_resize_mode, canvas, rules))
    start = condition.start_time_seconds or 0.0
    heard = min(probe.audio_seconds - start, frames / FPS) if probe.has_audio else 0.0
    samples = max(0, round(heard * SAMPLE_RATE))
    if condition.type == "audio":
        return segments.audio(samples)
    used_frames = min(frames, round(seconds_used(condition, probe) * FPS))
    return segments.video(geometry.reference_video_size(probe.ratio, rules), used_frames, samples)


def _shown_tokens(
    request: GenerationRequest, probes: Sequence[MediaProbe], canvas: Size, frames: int, rules: SizeRules
) -> int:
    """Tokens of labels and vision blocks; keyframes beside references are not shown (spec/text_encoder.md 7.3)."""
    if request.task == "fl2va":
        return len(request.keyframes) * (_LABEL_TOKENS + vision_tokens(*canvas))
    total = 0
    for _, condition, probe in _numbered(request, probes):
        if condition.role == "keyframe":
            continue
        piece = _reference(request, condition, probe, canvas, frames, rules)
        total += _LABEL_TOKENS * (1 + (condition.type != "audio" and piece.audio_latents > 0))
        if condition.type == "image" and piece.size:
            total += vision_tokens(*piece.size)
        elif piece.size:
            blocks = video_blocks(min(frames, round(seconds_used(condition, probe) * FPS)), *piece.size)
            total += blocks.blocks * (blocks.tokens + _TIMESTAMP_TOKENS)
    return total


_WITH_AUDIO = ("audio", "video", "video_audio")


def _numbered(request: GenerationRequest, probes: Sequence[MediaProbe]) -> list[tuple[int, Condition, MediaProbe]]:
    return [(i, c, p) for i, (c, p) in enumerate(zip(request.conditions, probes, strict=True))]


def _guess_tokens(prompt: str) -> int:
    return max(1, round(len(prompt.encode()) / _BYTES_PER_TOKEN))
