"""diffusers as the oracle of whole generations: same noise in, every intermediate out.

Its image and video processors need torchvision, which does not import beside a CPU-only torch, so a
stand-in hands it our patches; those are held against recorded processor arrays elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from diffusers import ModularPipeline
from diffusers.models.autoencoders import vae as posterior_module
from diffusers.modular_pipelines.minimax_h3 import (
    MiniMaxH3AudioReference,
    MiniMaxH3ImageReference,
    MiniMaxH3VideoReference,
    before_denoise,
)
from PIL import Image

from h3serve.core.geometry import SizeRules
from h3serve.models.text_encoder.vision_patches import image_patches, video_patches
from h3serve.pipeline.conditions import PreparedCondition
from h3serve.pipeline.noise import Noise

SMALL = SizeRules(max_canvas_area=8192, picture_short_edge=64, clip_short_edge=64)


class StandInProcessor:
    """What the pipeline asks of Qwen3VLProcessor, from our own patches."""

    def __init__(self, tokenizer: Any) -> None:
        self.pads = {
            tokenizer.convert_tokens_to_ids("<|image_pad|>"): 1,
            tokenizer.convert_tokens_to_ids("<|video_pad|>"): 2,
        }
        self.image_processor = _Batch("pixel_values", "image_grid_thw", image_patches, merge_size=2)
        self.video_processor = _Batch(
            "pixel_values_videos", "video_grid_thw", video_patches, merge_size=2, temporal_patch_size=2
        )

    def create_mm_token_type_ids(self, batches: list[list[int]]) -> list[list[int]]:
        return [[self.pads.get(token, 0) for token in ids] for ids in batches]


class _Batch(SimpleNamespace):
    def __init__(self, values: str, grids: str, cut: Any, **attributes: int) -> None:
        super().__init__(**attributes)
        self._values, self._grids, self._cut = values, grids, cut

    def __call__(self, images: Any = None, videos: Any = None, **_: Any) -> dict[str, torch.Tensor]:
        if videos is not None:  # already sampled at 2 fps: spread out again for our 12-frame step
            cut = [self._cut(np.repeat(np.asarray(v), 12, axis=0)) for v in videos]
        else:
            cut = [self._cut(np.asarray(i)) for i in images]
        return {self._values: torch.cat([c[0] for c in cut]), self._grids: torch.tensor([c[1] for c in cut])}


class Peer:
    """One loaded diffusers pipeline; `generate` runs it with explicit noise."""

    def __init__(self, checkpoint: Path) -> None:
        self.pipe = ModularPipeline.from_pretrained(str(checkpoint), local_files_only=True)
        names = [n for n in self.pipe.pretrained_component_names if n != "processor"]
        self.pipe.load_components(names=names, dtype=torch.float32)
        self.pipe.update_components(processor=StandInProcessor(self.pipe.tokenizer))
        self.pipe.set_progress_bar_config(disable=True)

    def generate(
        self,
        prompt: str,
        canvas: tuple[int, int],
        prepared: list[PreparedCondition],
        noise: Noise,
        *,
        evaluations: int,
        frames: int,
        rules: SizeRules = SMALL,
        shifts: tuple[float, float] = (12.0, 3.0),
        level: float = 0.999,
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Arrays under the names of kept.py, plus `video` float and `audio`.

        `prepared` may hold pictures as they were given: diffusers brings them to size itself.
        """
        self.pipe.scheduler.set_shift(shifts[0])
        self.pipe.audio_scheduler.set_shift(shifts[1])
        self.pipe.update_components(
            canvas_short_edge=rules.clip_short_edge,
            canvas_max_pixels=rules.max_canvas_area,
            reference_image_short_edge=rules.picture_short_edge,
        )
        inputs: dict[str, Any] = {
            "prompt": prompt, "width": canvas[0], "height": canvas[1], "num_frames": frames, "output_type": "np",
            "num_inference_steps": evaluations + 1, "latents": noise.video,
            "audio_latents": noise.audio.reshape(2, -1, 32).transpose(1, 2),
        }  # fmt: skip
        references = [_reference(item) for item in prepared if item.segment.kind != "keyframe"]
        if references:
            inputs["references"] = references
        for item in prepared:
            if item.segment.kind == "keyframe" and item.frames is not None:
                inputs["last_image" if item.segment.is_last else "image"] = Image.fromarray(item.frames[0])
        recorder = _Recorder(self.pipe, noise, with_references=bool(references))
        held = patch.object(type(self.pipe), "keyframe_noise_aug", property(lambda _: level))
        with recorder, held:
            state = self.pipe(**inputs)
        return recorder.arrays(state)


def _reference(item: PreparedCondition) -> Any:
    wave = None if item.wave is None else torch.from_numpy(item.wave)
    rate = None if wave is None else 32_000
    if item.segment.kind == "image" and item.frames is not None:
        return MiniMaxH3ImageReference(image=Image.fromarray(item.frames[0]))
    if item.segment.kind == "audio":
        return MiniMaxH3AudioReference(audio=wave, sample_rate=rate)
    return MiniMaxH3VideoReference(frames=item.frames, fps=24.0, audio=wave, sample_rate=rate)


class _Recorder:
    """Serves the noise in packed order and keeps what enters and leaves the transformer."""

    def __init__(self, pipe: Any, noise: Noise, *, with_references: bool) -> None:
        self.denoiser = pipe.transformer_ref if with_references else pipe.transformer
        self.condition_noise, self.posterior_noise = list(noise.conditions), list(noise.posterior)
        self.steps: dict[str, list[torch.Tensor]] = {}
        self.hooks: list[Any] = []
        self.patches = [
            patch.object(before_denoise, "randn_tensor", lambda *_, **__: self.condition_noise.pop(0).clone()),
            patch.object(posterior_module, "randn_tensor", lambda *_, **__: self.posterior_noise.pop(0).clone()),
        ]

    def __enter__(self) -> None:
        for item in self.patches:
            item.start()
        self.hooks = [self.denoiser.register_forward_hook(self._keep, with_kwargs=True)]

    def __exit__(self, *_: object) -> None:
        for item in self.patches:
            item.stop()
        for hook in self.hooks:
            hook.remove()

    def _keep(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        values = (kwargs["hidden_states"], kwargs["audio_hidden_states"], output[0], output[1])
        names = ("step_video_rows", "step_audio_rows", "step_video_velocity", "step_audio_velocity")
        for name, value in zip(names, values, strict=True):
            self.steps.setdefault(name, []).append(value[0].clone())

    def arrays(self, state: Any) -> dict[str, np.ndarray[Any, Any]]:
        assert not self.condition_noise and not self.posterior_noise, "not every condition asked for its noise"
        skip = {
            "video": state.get("num_condition_video_rows") or 0,
            "audio": state.get("num_condition_audio_rows") or 0,
        }
        kept: dict[str, Any] = {
            name: torch.stack(values)[:, skip[name.split("_")[1]] :] for name, values in self.steps.items()
        }
        for name in (
            "position_ids",
            "token_tags",
            "text_token_tags",
            "video_indices",
            "audio_indices",
            "text_indices",
            "condition_rows",
        ):
            kept[name] = state.get(name)
        for name in ("condition_latents", "audio_condition_latents"):
            for number, value in enumerate(state.get(name) or []):
                kept[name.replace("audio_condition_latents", "condition_audio") + str(number)] = value
        kept["text_states"] = state.get("prompt_embeds")[0]
        kept["row_timesteps"] = torch.stack([v[i] for v, i in state.get("row_timestep_plan")])
        kept["final_video_latents"], kept["final_audio_latents"] = state.get("latents"), state.get("audio_latents")
        kept["video"], kept["audio"] = np.asarray(state.get("videos"))[0], state.get("audio")[0]
        return {name: np.asarray(value) for name, value in kept.items() if value is not None}
