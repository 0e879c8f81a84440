"""Random engines of any size go through the whole pipeline."""

import numpy as np
import pytest

from h3serve.core.limits import Quality
from h3serve.models.quality import has_float8
from h3serve.pipeline.generator import Generator
from tests.pipeline.small_engine import small_engine


@pytest.mark.parametrize("quality", ["lossless", "fast"])
def test_a_small_random_engine_makes_a_clip(quality: Quality) -> None:
    engine = small_engine(quality)
    for network in (engine.text_encoder, engine.denoisers["fl2va"].transformer):
        assert has_float8(network) == (quality == "fast")
    target = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}
    request = {"task": "t2va", "prompt": "x", "target": target, "num_inference_steps": 1}
    result = Generator(engine).generate(request)
    assert result.video.std() > 0 and np.isfinite(result.audio).all()


def test_warm_up_goes_both_ways_through_the_vae() -> None:
    engine = small_engine()
    calls: list[str] = []
    engine.video_vae.encoder.register_forward_hook(lambda *_: calls.append("encode"))
    engine.video_vae.decoder.register_forward_hook(lambda *_: calls.append("decode"))
    engine.denoisers["fl2va"].transformer.register_forward_hook(lambda *_: calls.append("evaluate"))
    Generator(engine).warm_up(short_edge=64)
    assert calls.count("evaluate") == 1 and calls.index("evaluate") < calls.index("decode")
    assert calls[-2:] == ["encode", "encode"]
