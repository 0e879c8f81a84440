"""Steps of one generation between prepared media and finished arrays, in the order of docs/architecture.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from h3serve.core.errors import OutputError
from h3serve.core.plan import Plan
from h3serve.core.request import GenerationRequest
from h3serve.models.audio_vae.audio_vae import AudioVAE
from h3serve.models.text_encoder.tokenizer import Tokenizer
from h3serve.models.video_vae.video_vae import to_uint8
from h3serve.pipeline.conditions import ConditionRows, PreparedCondition
from h3serve.pipeline.generation_progress import Meter
from h3serve.pipeline.intermediates import Intermediates
from h3serve.pipeline.mp4_stream import Chunk, streaming_mp4
from h3serve.pipeline.noise import Noise, latent_shape
from h3serve.pipeline.packing import PackedLayout
from h3serve.pipeline.prompt_builder import BuiltPrompt, Shown, ShownAudio, ShownImage, ShownVideo, present
from h3serve.pipeline.rows import audio_to_latents, rows_to_video
from h3serve.pipeline.schedule import Schedule, make_schedule
from h3serve.runtime.offload.copy_to_host import to_host


@dataclass(frozen=True)
class Latents:
    """What the loop leaves: normalized video latents [1,24,T,H,W] and audio latents [2,32,Ta], float32."""

    video: Tensor
    audio: Tensor


def shown_conditions(prepared: Sequence[PreparedCondition]) -> tuple[list[ShownImage], list[Shown]]:
    """(keyframes, references) as the text encoder is shown them."""
    keyframes = [ShownImage(p.frames[0]) for p in prepared if p.segment.kind == "keyframe" and p.frames is not None]
    references: list[Shown] = []
    for item in prepared:
        if item.segment.kind == "audio":
            references.append(ShownAudio())
        elif item.segment.kind == "image" and item.frames is not None:
            references.append(ShownImage(item.frames[0]))
        elif item.segment.kind == "video" and item.frames is not None:
            references.append(ShownVideo(item.frames, has_audio=item.wave is not None))
    return keyframes, references


def present_request(
    request: GenerationRequest, prepared: Sequence[PreparedCondition], tokenizer: Tokenizer, kept: Intermediates
) -> BuiltPrompt:
    """Token ids, types and tags of the request's presentation."""
    keyframes, references = shown_conditions(prepared)
    shown = present(request.task, request.prompt, tokenizer, keyframes=keyframes, references=references)
    inputs = shown.inputs
    kept.put("text", token_ids=inputs.token_ids, token_types=inputs.token_types, text_token_tags=shown.tags)
    return shown


def make_schedules(
    request: GenerationRequest, shifts: tuple[float, float], kept: Intermediates
) -> tuple[Schedule, Schedule]:
    """(video, audio) schedules: the request's shifts, or else the checkpoint's."""
    count = request.num_inference_steps
    video = make_schedule(count, request.flow_shift or shifts[0], "flow_shift")
    audio = make_schedule(count, request.audio_flow_shift or shifts[1], "audio_flow_shift")
    kept.put("schedule", sigmas_video=video.sigmas, sigmas_audio=audio.sigmas)
    return video, audio


def keep_layout(layout: PackedLayout, rows: ConditionRows, kept: Intermediates) -> None:
    """Keeps the packed layout under the names of `kept.py`."""
    assert len(rows.video) == layout.condition_video_rows and len(rows.audio) == layout.condition_audio_rows
    kept.put(
        "positions",
        position_ids=layout.positions,
        token_tags=layout.tags,
        text_indices=layout.text_index,
        video_indices=layout.video_index,
        audio_indices=layout.audio_index,
        condition_video_rows=layout.condition_video_rows,
        condition_audio_rows=layout.condition_audio_rows,
    )


def keep_noise(noise: Noise, kept: Intermediates) -> None:
    """Keeps every draw."""
    kept.put("noise", noise_video=noise.video, noise_audio=noise.audio)
    kept.put_each("noise", "noise_condition", noise.conditions)
    kept.put_each("noise", "noise_posterior", noise.posterior)


def to_latents(rows: tuple[Tensor, Tensor], plan: Plan, kept: Intermediates) -> Latents:
    """Final target rows as latents; OutputError if the model has diverged."""
    for name, values in zip(("video", "audio"), rows, strict=True):
        if not bool(torch.isfinite(values).all()):
            raise OutputError(
                f"the {name} latents hold NaN or infinite values: the model has diverged; nothing was made"
            )
    latents = Latents(rows_to_video(rows[0], latent_shape(plan.target)), audio_to_latents(rows[1]))
    kept.put("latents", final_video_latents=latents.video, final_audio_latents=latents.audio)
    return latents


def decode_audio(vae: AudioVAE, latents: Latents) -> NDArray[np.float32]:
    """float32 [2, samples] at 32 kHz; OutputError for NaN or infinite samples."""
    wave: NDArray[np.float32] = vae.decode(latents.audio).cpu().numpy()
    if not np.isfinite(wave).all():
        raise OutputError("the decoded sound holds NaN or infinite samples; nothing was made")
    return wave


def is_mp4(path: str | Path) -> bool:
    """True for paths whose file is written while frames are decoded."""
    return Path(path).suffix.lower() == ".mp4"


@contextmanager
def chunk_sink(
    output: str | Path | None, plan: Plan, audio: NDArray[np.float32]
) -> Iterator[Callable[[Chunk], None] | None]:
    """Where decoded frames go beside the result: the MP4 writer, or nowhere."""
    if output is None or not is_mp4(output):
        yield None
        return
    with streaming_mp4(output, plan, audio) as put:
        yield put


def decode_video(
    chunks: Iterable[Tensor], plan: Plan, meter: Meter, on_chunk: Callable[[Chunk], None] | None
) -> NDArray[np.uint8]:
    """uint8 [frames, height, width, 3] of what `VideoVAE.decode` gives; a chunk is handed on as soon as it is there."""
    width, height = plan.canvas
    video = np.empty((plan.frames, height, width, 3), np.uint8)
    done = 0
    for frames, finite in to_host((to_uint8(f), torch.isfinite(f).all()) for f in chunks):
        if not finite:
            raise OutputError("the decoded video holds NaN or infinite values; nothing was made")
        chunk = video[done : done + len(frames)]
        chunk[:] = frames.numpy()
        done += len(chunk)
        if on_chunk:
            on_chunk(chunk)
        meter.frames(done, plan.frames)
    assert done == plan.frames
    return video
