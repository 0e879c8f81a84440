"""Prompts, pictures and sounds to what the transformer takes; a network wakes only for what was not encoded before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from h3serve.models.text_encoder.text_encoder import EncoderInput
from h3serve.models.video_vae.video_vae import Moments
from h3serve.pipeline.engine import Engine
from h3serve.runtime.encoding_cache import digest_of
from h3serve.weights.files import memory_buffers

AHEAD = 2  # modules that a GPU may have in its queue: it never idles, and what is queued is soon done
Between = Callable[[], None]  # called before each layer or batch of tiles; may raise to stop


def _never() -> None: ...


def encode_text(engine: Engine, inputs: EncoderInput, between: Between = _never) -> Tensor:
    """Token states [L, width] on the device."""

    def make() -> dict[str, Tensor]:
        model = engine.text_encoder.model
        layers = [*model.visual.blocks, *model.language_model.layers]
        with engine.on_device(engine.text_encoder), stopping(layers, between, engine.device):
            return {"states": engine.text_encoder.encode(inputs).cpu()}

    name = digest_of("text", *vars(inputs).values())
    return engine.encodings.get(name, make)["states"].to(engine.device)


def encode_frames(engine: Engine, frames: NDArray[np.uint8], between: Between = _never) -> Moments:
    """Moments of uint8 [F, H, W, 3], on the device."""

    def make() -> dict[str, Tensor]:
        vae = engine.video_vae
        pixels = torch.from_numpy(frames if frames.flags.writeable else frames.copy())  # torch shares memory
        with engine.on_device(vae), stopping([vae.encoder], between, engine.device):
            mean, logvar = vae.encode_frames(pixels)
            return {"mean": mean.cpu(), "logvar": logvar.cpu()}

    held = engine.encodings.get(digest_of("frames", frames), make)
    return Moments(held["mean"].to(engine.device), held["logvar"].to(engine.device))


def encode_audio(engine: Engine, wave: NDArray[np.float32], between: Between = _never) -> Tensor:
    """Rows of float32 [2, n] at 32 kHz, on the device."""

    def make() -> dict[str, Tensor]:
        vae = engine.audio_vae
        layers = [*vae.encoder.block, vae.pre_block]
        with engine.on_device(vae), stopping(layers, between, engine.device):
            return {"rows": vae.encode(torch.from_numpy(wave).to(engine.device)).cpu()}

    return engine.encodings.get(digest_of("wave", wave), make)["rows"].to(engine.device)


@contextmanager
def stopping(modules: Iterable[nn.Module], between: Callable[[], None], device: torch.device) -> Iterator[None]:
    """Inside the block `between` is called before each run of one of `modules` and may raise to end it.

    The host waits for the device, so that a call means that what came before is nearly done.
    """
    queued: deque[torch.cuda.Event] = deque()

    def before(*_: object) -> None:
        if (event := memory_buffers.record(device)) is not None:
            queued.append(event)
            if len(queued) > AHEAD:
                queued.popleft().synchronize()
        between()

    hooks = [module.register_forward_pre_hook(before) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
