"""A random engine of the demo's sizes, on the CPU."""

import torch

from h3serve.core.tasks import Quality
from h3serve.pipeline.engine import Engine
from h3serve.pipeline.synthetic import synthetic_engine
from h3serve.weights import demo_sizes
from h3serve.weights.demo_tokenizer import build_tokenizer
from h3serve.weights.released import RELEASED


def small_engine(quality: Quality = "lossless") -> Engine:
    zero_one = {"latents_mean": [0.0] * 24, "latents_std": [1.0] * 24}
    sound = {"latents_mean": [0.0] * 32, "latents_std": [1.0] * 32}
    vocabulary = build_tokenizer().get_vocab(with_added_tokens=True)
    configs = {
        "transformer": demo_sizes.transformer("diffusers"),
        "text_encoder": demo_sizes.text_encoder(vocabulary),
        "video_vae": demo_sizes.video_vae("diffusers", zero_one),
        "audio_vae": demo_sizes.audio_vae("diffusers", sound),
    }
    assert set(configs) == set(RELEASED)
    return synthetic_engine(torch.device("cpu"), quality=quality, dtype=torch.float32, configs=configs)
