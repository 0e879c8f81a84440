"""Forward and backward of a padded batch, recorded once as a CUDA graph: one launch a step instead of a thousand."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from torch import Tensor

from demo.train.batch_plan import Plan
from demo.train.captured import record
from demo.train.denoiser import Kernels, Noised, Trainee, losses, padded
from demo.train.text import Seen


class Replayed:
    """`losses` and `backward` on tensors that stay where they are; gradients go where the parameters' own are.

    `plan` and `noised` are any padded batch of the shape that all will have, with pictures or clips in it.
    """

    def __init__(self, trainee: Trainee, plan: Plan, noised: Noised, kernels: Kernels) -> None:
        device = noised.video.device
        self.trainee, self.plan, self.kernels = trainee, plan, kernels
        self.buffer = plan.sent(device)
        whole = padded(noised, plan, plan.cut(self.buffer))
        assert whole.seen is not None, "the first batch has to show the encoder something"
        self.held = replace(
            whole, **{f.name: getattr(whole, f.name).clone() for f in fields(whole) if f.name != "seen"}
        )
        self.features, self.deep = whole.seen.features.clone(), tuple(d.clone() for d in whole.seen.deep)
        self.graph = self._record(device)

    def __call__(self, plan: Plan, buffer: Tensor, noised: Noised) -> Tensor:
        """(video, audio) loss [2], not yet computed when this returns; valid until the next call."""
        self.buffer.copy_(buffer)
        held, before = self.held, (plan.condition_video_rows, plan.condition_audio_rows)
        held.video[: len(noised.video)].copy_(noised.video)
        held.audio[: len(noised.audio)].copy_(noised.audio)
        held.video_velocity[before[0] : before[0] + len(noised.video_velocity)].copy_(noised.video_velocity)
        held.audio_velocity[before[1] : before[1] + len(noised.audio_velocity)].copy_(noised.audio_velocity)
        held.timesteps.copy_(noised.timesteps)
        if noised.seen is not None:
            count = len(noised.seen.features)
            for ours, theirs in zip(
                (self.features, *self.deep), (noised.seen.features, *noised.seen.deep), strict=True
            ):
                ours[:count].copy_(theirs)
        if self.graph is None:
            self.plan = plan  # kernels of a CPU need lengths on the host
            self.result = self._run()
        else:
            self.graph.replay()
        return self.result

    def _record(self, device: torch.device) -> torch.cuda.CUDAGraph | None:
        """None on a CPU, where every call runs the same lines anew."""
        if device.type != "cuda":
            return None
        graph, self.result = record(self._run, capture_error_mode="thread_local")  # others' threads, as NCCL's, go on
        return graph

    def _run(self) -> Tensor:
        arrays = self.plan.cut(self.buffer)
        noised = replace(self.held, seen=Seen(arrays.seen, self.features, self.deep))
        video, audio, *_ = losses(self.trainee, self.plan, arrays, noised, self.kernels)
        (video + audio).backward()
        return torch.stack([video.detach(), audio.detach()])
