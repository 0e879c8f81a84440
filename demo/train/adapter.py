"""Trains an adapter for the demo checkpoint: low ranks on its blocks, for a thing that it has never seen or heard.

    python -m demo.train.adapter --new teal --out teal.safetensors [--seconds 240] [--clips 1200] [--device cuda]

Half of the clips have the new thing and a prompt that asks for it; of the others the checkpoint itself says what to
answer, so that nothing else changes. The checkpoint, its text encoder and its VAEs stay as they are.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from demo.train.denoiser import draw_sigmas
from demo.train.encode import Encoders, audio_rows, make_encoders, video_rows
from demo.train.loop import Clock, Every
from demo.world import make_example, render, synthesize
from demo.world.names import canvas_of, frames_of
from demo.world.new_things import NEW, asking_for
from h3serve import Generator
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.models.kernels.attention import sdpa
from h3serve.models.kernels.elementwise import Rope
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.models.transformer.transformer import StaticInputs
from h3serve.pipeline.encode import encode_text
from h3serve.pipeline.engine import Engine
from h3serve.pipeline.intermediates import Intermediates
from h3serve.pipeline.packing import FOLLOWS_AUDIO, pack
from h3serve.pipeline.predict import prepare_static
from h3serve.pipeline.prompt_builder import present_request
from h3serve.weights.formats.load import load_component
from h3serve.weights.formats.opened_component import open_component
from h3serve.weights.locate import locate

RANK, RATE = 8, 2e-3
CANVASES = (("1:1", 64), ("4:3", 64), ("3:4", 64))
LAYERS = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")
FIRST_SEED = 2**34  # beyond those of the checkpoint's own training, far from those of the evaluation


@dataclass(frozen=True)
class Sample:
    """One clip: clean rows, its packed sequence with encoded text, and which rows follow the sound's timestep.

    `is_new` says whether it has the new thing.
    """

    video: Tensor
    audio: Tensor
    static: StaticInputs
    hears: Tensor
    is_new: bool


def samples(engine: Engine, encoders: Encoders, denoiser: Denoiser, new: str, count: int) -> list[Sample]:
    """Every other clip has the new thing; 16 at once go through the VAEs."""
    found: list[Sample] = []
    for first in range(0, count, 16):
        ratio, edge = CANVASES[first // 16 % len(CANVASES)]
        canvas, frames = canvas_of(ratio, edge), frames_of(4)
        examples = [make_example(FIRST_SEED + n, "t2va", canvas, frames) for n in range(first, first + 16)]
        examples = [asking_for(e, [new]) if n % 2 else e for n, e in enumerate(examples)]
        scenes = [example.scene for example in examples]
        video = video_rows(encoders, render(scenes, engine.device), sampled=False).float()
        audio = audio_rows(encoders, synthesize(scenes, engine.device)).float()
        for number, example in enumerate(examples):
            target = {"short_edge": edge, "aspect_ratio": ratio, "duration_seconds": 4}
            request = parse_request({"task": "t2va", "prompt": example.prompt, "target": target})
            plan = Plan.resolve(request, rules=engine.rules, model=engine.size)
            shown = present_request(request, [], engine.tokenizer, Intermediates.of(()))
            layout = pack(shown.tags.numpy(), (), plan.target)
            with torch.no_grad():
                static = prepare_static(denoiser.transformer, encode_text(engine, shown.inputs), layout)
            hears = torch.from_numpy(layout.kinds == FOLLOWS_AUDIO).to(engine.device)
            found.append(Sample(video[number], audio[number], static, hears, number % 2 == 1))
    return found


class Lora(nn.Module):
    """A and B of one layer, added by a hook while it is trained."""

    def __init__(self, layer: nn.Linear, generator: torch.Generator) -> None:
        super().__init__()
        a = torch.randn(RANK, layer.in_features, generator=generator) * layer.in_features**-0.5
        self.a, self.b = nn.Parameter(a), nn.Parameter(torch.zeros(layer.out_features, RANK))
        self.is_on = True
        layer.register_forward_hook(self._add)

    def _add(self, _: nn.Module, inputs: tuple[Tensor], out: Tensor) -> Tensor:
        return out + (inputs[0] @ self.a.T) @ self.b.T if self.is_on else out


def together(batch: Sequence[Sample]) -> StaticInputs:
    """The sequences of a batch one after another."""
    lengths = [len(sample.hears) for sample in batch]
    starts = [sum(lengths[:n]) for n in range(len(batch))]

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(s.static, name) + start for s, start in zip(batch, starts, strict=True)])

    rope = Rope(*(torch.cat([getattr(s.static.rope, name) for s in batch]) for name in ("cos", "sin")))
    return StaticInputs(
        torch.cat([s.static.text for s in batch]),
        rope,
        torch.cat([s.static.tags for s in batch]),
        joined("text_index"),
        joined("video_index"),
        joined("audio_index"),
        0,
        0,
    )


def loss_of(denoiser: Denoiser, loras: Sequence[Lora], batch: Sequence[Sample]) -> Tensor:
    """Mean squares of both velocities against those wanted, each sample at a noise level of its own."""
    device = batch[0].video.device
    levels = torch.stack(draw_sigmas(len(batch), device), 1)  # [B, (video, audio)]
    lengths = [len(sample.hears) for sample in batch]
    index = torch.cat([2 * n + sample.hears.long() for n, sample in enumerate(batch)])

    def noised(name: str, which: int) -> tuple[Tensor, Tensor, Tensor]:
        clean = torch.cat([getattr(sample, name) for sample in batch])
        sizes = torch.tensor([len(getattr(sample, name)) for sample in batch], device=device)
        is_new = torch.tensor([sample.is_new for sample in batch], device=device).repeat_interleave(sizes)[:, None]
        level, noise = levels[:, which].repeat_interleave(sizes)[:, None], torch.randn_like(clean)
        return (1 - level) * clean + level * noise, clean - noise, is_new

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = (part.split(lengths) for part in (q, k, v))
        return torch.cat([sdpa(*part) for part in zip(*parts, strict=True)])

    (video, *video_wanted), (audio, *audio_wanted) = noised("video", 0), noised("audio", 1)
    denoiser.transformer.attention = attention
    with torch.no_grad():
        modulation = denoiser.modulation(1 - levels.flatten())
    given = {"static": together(batch), "modulation": modulation, "timestep_index": index}

    def velocities(*, is_on: bool) -> tuple[Tensor, Tensor]:
        for lora in loras:
            lora.is_on = is_on
        found: tuple[Tensor, Tensor] = denoiser.transformer(video, audio, **given)
        return found

    with torch.no_grad():
        own = velocities(is_on=False)
    loss = torch.zeros((), device=device)
    wanted = video_wanted, audio_wanted
    for found, before, (flow, is_new) in zip(velocities(is_on=True), own, wanted, strict=True):
        loss = loss + (found - torch.where(is_new, flow, before)).square().mean()
    return loss


def batches(held: Sequence[Sample], size: int, generator: torch.Generator) -> Iterator[list[Sample]]:
    """Without end; each clip once before any comes again."""
    while True:
        order = torch.randperm(len(held), generator=generator).tolist()
        for first in range(0, len(order) - size + 1, size):
            yield [held[n] for n in order[first : first + size]]


def train(new: str, out: Path, *, start: Path | None, seconds: float, clips: int, batch_size: int, device: str) -> None:
    """Trains for so long, from `start` or anew, then writes the adapter in 16 bits."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    engine = Generator.from_pretrained("demo", device=device, dtype="float32", quality="exact").engine
    opened = open_component(locate("demo"), "transformer", "fl2va")
    denoiser = load_component(opened, device=engine.device, dtype=torch.float32)
    assert isinstance(denoiser, Denoiser)
    denoiser.requires_grad_(False)
    layers = {
        name: layer
        for name, layer in denoiser.named_modules()
        if isinstance(layer, nn.Linear) and name.startswith("transformer.blocks.") and name.endswith(LAYERS)
    }
    with torch.no_grad():
        encoders = make_encoders(engine.video_vae, engine.audio_vae)
        held = samples(engine, encoders, denoiser, new, clips)
    print(f"{len(held)} clips, {len(layers)} layers", flush=True)  # noqa: T201
    loras = {name: Lora(layer, generator).to(engine.device) for name, layer in layers.items()}
    if start is not None:
        read(loras, start)
    parameters = [parameter for lora in loras.values() for parameter in lora.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)
    clock, say, recent = Clock(seconds), Every(10), []
    for step, batch in enumerate(batches(held, batch_size, generator)):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / 50) * (1 - clock.fraction)
        optimizer.zero_grad()
        loss = loss_of(denoiser, list(loras.values()), batch)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        recent.append(loss.detach())
        if say() or clock.done:
            mean = float(torch.stack(recent).mean())
            print(f"{clock.elapsed:.0f} s, {step + 1} steps, loss {mean:.4f}", flush=True)  # noqa: T201
            recent.clear()
        if clock.done:
            break
    write(loras, new, out)


def write(loras: dict[str, Lora], new: str, out: Path) -> None:
    """By the release's names, alpha as the rank."""
    tensors: dict[str, Tensor] = {}
    for path, lora in loras.items():
        name = path.removeprefix("transformer.")
        tensors[f"{name}.lora_A.weight"] = lora.a.detach().half().cpu().contiguous()
        tensors[f"{name}.lora_B.weight"] = lora.b.detach().half().cpu().contiguous()
        tensors[f"{name}.alpha"] = torch.tensor(float(RANK))
    save_file(tensors, out, {"base_model": "h3serve demo", "partition": "fl2va", "new": new})


def read(loras: dict[str, Lora], file: Path) -> None:
    """What `write` wrote."""
    tensors = load_file(file)
    for path, lora in loras.items():
        name = path.removeprefix("transformer.")
        lora.a.data.copy_(tensors[f"{name}.lora_A.weight"])
        lora.b.data.copy_(tensors[f"{name}.lora_B.weight"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--new", choices=NEW, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--clips", type=int, default=1200)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--start", type=Path, help="an adapter of this script to go on from")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    train(
        arguments.new,
        arguments.out,
        start=arguments.start,
        seconds=arguments.seconds,
        clips=arguments.clips,
        batch_size=arguments.batch,
        device=arguments.device,
    )


if __name__ == "__main__":
    main()
