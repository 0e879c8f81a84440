"""A random engine of the demo's sizes, on the CPU."""

import torch

from bench.synthetic_engine import synthetic_engine
from h3serve.core.limits import Quality
from h3serve.pipeline.engine import Engine
from h3serve.weights.demo import demo_sizes
from h3serve.weights.demo.demo_tokenizer import build_tokenizer
from h3serve.weights.formats.released_sizes import RELEASED


def small_engine(quality: Quality = "lossless") -> Engine:
    configs = demo_sizes.networks(build_tokenizer().get_vocab(with_added_tokens=True))
    assert set(configs) == set(RELEASED)
    return synthetic_engine(torch.device("cpu"), quality=quality, dtype=torch.float32, configs=configs)
