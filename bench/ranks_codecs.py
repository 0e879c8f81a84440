"""Parts of ranks_h200.py: the video VAE's tiles over all ranks, both ways, and the text encoder's layers over all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.ranks_bench import Bench, difference, disconnect
from bench.synthetic_weights import synthetic_component
from h3serve.models.text_encoder.text_encoder import EncoderInput, TextEncoder
from h3serve.pipeline.engine import Engine
from h3serve.runtime.parallel.sharding import share_tiles
from h3serve.runtime.parallel.tensor_parallel import part_of_state, shard_text_encoder
from h3serve.weights.demo import demo_sizes
from h3serve.weights.demo.demo_tokenizer import build_tokenizer
from h3serve.weights.formats.components import RECIPES, build_on_meta

CHUNKS = 7  # 124 frames, 5.2 s
TOKENS = (336, 4096)


@torch.inference_mode()
def video_vae(bench: Bench, engine: Engine) -> None:
    """A clip of 5 s into latents and back: one GPU, then its tiles over all."""
    vae, demo = engine.video_vae, bench.options.demo
    height, width, chunks = (64, 96, 1) if demo else (768, 1344, CHUNKS)
    generator = torch.Generator(bench.device).manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=bench.device)

    pixels = normal(1, 3, 17 * chunks + 5, height, width)
    latents = normal(1, vae.config.latent_channels, 5 * chunks + 2, height // 16, width // 16)
    kept: dict[str, torch.Tensor] = {}

    def encode() -> None:
        kept["found"] = vae.encode(pixels).mean

    def decode() -> None:
        *_, kept["found"] = vae.decode(latents)  # the last frames

    def measure(name: str, work: Callable[[], None], *, everybody: bool) -> dict[str, Any]:
        found: dict[str, Any] = {"seconds": bench.timed(work, everybody=everybody)}
        if everybody and name in kept:
            found["difference"] = difference(kept["found"], kept[name])
        elif "found" in kept:
            kept[name] = kept.pop("found")
        return found

    both = (("encode", encode), ("decode", decode))
    vae.encode(pixels[:, :, :17])  # compiles
    for _ in vae.decode(latents[:, :, :7]):
        pass
    for name, work in both:
        bench.part(f"{name} video, one GPU", lambda n=name, w=work: measure(n, w, everybody=False))
    share_tiles(vae, bench.ranks.world)
    bench.part("encode video, first on all", lambda: bench.timed(lambda: vae.encode(pixels[:, :, :17])))
    for name, work in both:
        bench.part(f"{name} video, all", lambda n=name, w=work: measure(n, w, everybody=True))
    disconnect(engine)


@torch.inference_mode()
def text_encoder(bench: Bench, engine: Engine) -> None:
    """The whole encoder on every rank, then each rank's slice of it."""
    whole = _demo_encoder() if bench.options.demo else engine.text_encoder
    ids = torch.randint(0, 1000, (max(TOKENS),), generator=torch.Generator().manual_seed(4)) % whole.config.vocab_size
    inputs = [EncoderInput(ids[:count], torch.zeros(count, dtype=torch.int64)) for count in TOKENS]
    kept: list[torch.Tensor] = []

    def measure(encoder: TextEncoder) -> list[dict[str, Any]]:
        found = []
        for number, one in enumerate(inputs):
            states = encoder.encode(one)
            seconds = min(bench.timed(lambda one=one: encoder.encode(one), 3))
            found.append({"tokens": len(one.token_ids), "seconds": seconds})
            if number < len(kept):
                found[-1]["difference"] = difference(states, kept[number])
            else:
                kept.append(states.float().cpu())
        return found

    def other_kernel() -> float:
        """What another attention kernel changes, to compare with what dividing changes."""
        with sdpa_kernel(SDPBackend.MATH):
            return difference(whole.encode(inputs[0]), kept[0])

    bench.part("text encoder, whole", lambda: measure(whole))
    bench.part("text encoder, whole, another attention kernel", other_kernel)
    before = bench.held()
    divided = build_on_meta(RECIPES["text_encoder"], whole.config)
    assert isinstance(divided, TextEncoder)
    part_of_state(divided, shard_text_encoder(bench.ranks.world)(divided), whole.state_dict())
    divided.reset_buffers(bench.device)
    bench.part("text encoder, divided", lambda: {"held": bench.held() - before, "found": measure(divided)})


def _demo_encoder() -> TextEncoder:
    """The demo's encoder has one key-value head, which cannot be divided: this one has as many as there are queries."""
    config = demo_sizes.text_encoder(build_tokenizer().get_vocab())
    config["text_config"]["num_key_value_heads"] = config["text_config"]["num_attention_heads"]
    encoder = synthetic_component("text_encoder", device="cpu", config=config)
    assert isinstance(encoder, TextEncoder)
    return encoder
