"""Random engines of any size go through the whole pipeline."""

import numpy as np
import pytest
import torch

from h3serve.core.tasks import Quality
from h3serve.models.tiers import has_float8
from h3serve.pipeline.generator import Generator
from h3serve.pipeline.synthetic import synthetic_engine
from h3serve.weights import demo_sizes
from h3serve.weights.demo_tokenizer import build_tokenizer
from h3serve.weights.released import RELEASED


@pytest.mark.parametrize("quality", ["lossless", "fast"])
def test_a_small_random_engine_makes_a_clip(quality: Quality) -> None:
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
    engine = synthetic_engine(torch.device("cpu"), quality=quality, dtype=torch.float32, configs=configs)
    for network in (engine.text_encoder, engine.denoisers["fl2va"].transformer):
        assert has_float8(network) == (quality == "fast")
    target = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}
    request = {"task": "t2va", "prompt": "x", "target": target, "num_inference_steps": 1}
    result = Generator(engine).generate(request)
    assert result.video.std() > 0 and np.isfinite(result.audio).all()
