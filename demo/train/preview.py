"""A look at what has been learnt: clips sampled by the ordinary loop, as strips of frames over the sound's spectrum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from demo.train.batch_plan import Bucket
from demo.train.denoiser import Trainee
from demo.train.encode import Encoders
from demo.train.text import Seen, token_states
from h3serve.core.limits import DEFAULT_AUDIO_CONDITION_LEVEL, DEFAULT_VISUAL_CONDITION_LEVEL
from h3serve.models.video_vae.video_vae import to_uint8
from h3serve.pipeline.conditions import ConditionRows, mix
from h3serve.pipeline.intermediates import Intermediates
from h3serve.pipeline.noise import draw, latent_shape
from h3serve.pipeline.packing import pack, rows_to_video, video_to_rows
from h3serve.pipeline.predict import make_predict, prepare_static
from h3serve.pipeline.schedule import Schedule, all_step_times, sigma_grid
from h3serve.pipeline.solver import denoise
from h3serve.runtime.adaln.modulation_tables import Direct
from h3serve.weights.demo.demo_sizes import SHIFTS

STEPS = 20
STRIP = 10  # frames
LEVELS = DEFAULT_VISUAL_CONDITION_LEVEL, DEFAULT_AUDIO_CONDITION_LEVEL


@dataclass(frozen=True)
class Drawn:
    """Rows that the loop left, and those of the data: video [R, 96], audio [2*Ta, 32], float32."""

    video: Tensor
    audio: Tensor


@torch.inference_mode()
def sample(trainee: Trainee, bucket: Bucket, number: int, *, seed: int = 0, steps: int = STEPS) -> Drawn:
    """One sample's prompt and conditions through packing, schedules and loop of `h3serve.pipeline`."""
    device, form = bucket.video.device, bucket.form
    prompt = bucket.prompts[number][0]
    tokens = len(form.prefix) + len(prompt)
    noise = draw(seed, form.conditions, form.target)
    held = [n.to(device) for n in noise.conditions]
    video, audio = bucket.condition_video[number].float(), bucket.condition_audio[number].float()
    if held:
        video = mix(video, torch.cat([video_to_rows(n) for n in held]), LEVELS[0])
    layout = pack(form.text_tags(tokens), form.conditions, form.target)
    transformer = trainee.denoiser.transformer
    static = prepare_static(transformer, _states(trainee, bucket, number), layout)
    schedules = Schedule(sigma_grid(steps, SHIFTS.video)), Schedule(sigma_grid(steps, SHIFTS.audio))
    times = all_step_times(schedules, layout, LEVELS)
    with Direct(trainee.denoiser.modulation).schedule([t.values for t in times]) as scheduled:
        conditions = ConditionRows(video, audio)
        predict = make_predict(transformer, scheduled, static, conditions, layout, times, Intermediates.of(()))
        start = video_to_rows(noise.video.to(device)), noise.audio.to(device)
        return Drawn(*denoise(predict, start, schedules, lambda *_: None))


def _states(trainee: Trainee, bucket: Bucket, number: int) -> Tensor:
    form, device = bucket.form, bucket.video.device
    ids = np.concatenate([form.prefix, bucket.prompts[number][0]])
    places = torch.from_numpy(form.text_positions(len(ids))).to(device)[:, None]
    seen = None
    if bucket.deep:
        index = torch.from_numpy(form.vision_places).to(device)
        seen = Seen(index, bucket.features[number], tuple(d[number] for d in bucket.deep))
    return token_states(trainee.encoder, torch.from_numpy(ids).to(device)[None], places, seen)[0]


@torch.inference_mode()
def picture(encoders: Encoders, bucket: Bucket, rows: Sequence[Drawn]) -> Image.Image:
    """One strip over another."""
    strips = []
    for drawn in rows:
        latents = rows_to_video(drawn.video.float(), latent_shape(bucket.form.target))
        frames = to_uint8(encoders.video.decode_all(latents)).cpu().numpy()
        wave = encoders.audio.decode(drawn.audio.float().contiguous()).cpu()
        shown = np.concatenate(frames[np.linspace(0, len(frames) - 1, STRIP).round().astype(int)], axis=1)
        strips += [shown, _spectrum(wave, shown.shape[1])]
    return Image.fromarray(np.concatenate(strips))


def _spectrum(wave: Tensor, width: int) -> np.ndarray:
    """Log spectra of the left channel (red) and the right (green), 48 pixels high, low notes at the bottom."""
    window = torch.hann_window(1024)
    power = torch.stft(wave, 1024, 320, window=window, return_complex=True).abs()[:, 1:97].flip(1)
    level = ((power + 1e-4).log10() / 4 + 0.6).clamp(0, 1)
    level = torch.nn.functional.interpolate(level[None], (48, width), mode="bilinear")[0]
    return (torch.stack([level[0], level[1], level.mean(0) * 0.5], -1) * 255).byte().numpy()


def save_preview(trainee: Trainee, encoders: Encoders, buckets: Sequence[Bucket], file: Path) -> None:
    """For the largest bucket of each kind: two samples of the data, each above what was drawn for its prompt."""
    file.parent.mkdir(parents=True, exist_ok=True)
    strips = []
    for kind in dict.fromkeys(bucket.kind for bucket in buckets):
        bucket = max((b for b in buckets if b.kind == kind), key=len)
        data = [Drawn(bucket.video[i].float(), bucket.audio[i].float()) for i in range(min(2, len(bucket)))]
        drawn = [sample(trainee, bucket, i, seed=100 + i) for i in range(len(data))]
        strips.append(picture(encoders, bucket, [row for pair in zip(data, drawn, strict=True) for row in pair]))
    width, height = max(s.width for s in strips), sum(s.height for s in strips)
    whole, top = Image.new("RGB", (width, height)), 0
    for strip in strips:
        whole.paste(strip, (0, top))
        top += strip.height
    whole.save(file)
