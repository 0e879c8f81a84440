"""Whole generations on several ranks: one rank's clip, and one end for all."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from h3serve import Generator
from h3serve.core.errors import Cancelled, MediaError, RequestError, WorkerError
from h3serve.core.request import parse_request
from h3serve.core.settings import EngineSettings
from h3serve.models.transformer.denoiser import param_dtype
from h3serve.models.transformer.modulation import Modulation
from h3serve.models.transformer.transformer import Transformer
from h3serve.pipeline.engine import load_engine
from h3serve.pipeline.generation_progress import Progress
from h3serve.pipeline.replica import Member
from h3serve.runtime.adaln.modulation_tables import ModulationSource, Scheduled
from h3serve.runtime.parallel.parallel_layout import Shape
from h3serve.runtime.parallel.process_group import Ranks
from h3serve.runtime.parallel.sharding import RankShare
from h3serve.weights.demo.demo_random import write_demo_checkpoint
from tests.media.films import counter, film
from tests.rank_pool import Pool, pool

TARGET = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}
REQUEST: dict[str, Any] = {"task": "t2va", "prompt": "rain.", "target": TARGET, "num_inference_steps": 2, "seed": 3}
SIGMAS = {"video": [1, 0.9, 0.7, 0.4, 0], "audio": [1, 0.8, 0.5, 0.2, 0]}
FOUR_STEPS: dict[str, Any] = {"num_inference_steps": 4, "solver": "multistep", "sigmas": SIGMAS}
LAYERS = {"attn.qkv_proj": (1536, 64), "attn.out_proj": (64, 512), "mlp.fc1": (320, 64), "mlp.fc2": (64, 160)}
SHAPES = [Shape(2, 1), Shape(1, 2), Shape(2, 2)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "checkpoint"
    write_demo_checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("media")
    picture = folder / "first.png"
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)).save(picture)
    clip = film(folder / "clip.mp4", [counter(i) for i in range(60)], sound=np.zeros((2, 80_000), np.float32))
    keyframe = {"type": "image", "role": "keyframe", "frame_index": 0, "uri": str(picture)}
    reference = {"type": "video", "role": "reference", "uri": str(clip)}
    return {
        "t2va": REQUEST,
        "fl2va": {**REQUEST, "task": "fl2va", "conditions": [keyframe], **FOUR_STEPS},
        "ref2va": {**REQUEST, "task": "ref2va", "conditions": [reference]},
    }


class Cast:
    """A source of modulation whose tables come in the transformer's dtype, whatever that is at the moment."""

    def __init__(self, source: ModulationSource, transformer: Transformer) -> None:
        self.source, self.transformer = source, transformer

    @contextmanager
    def schedule(self, steps: Any) -> Iterator[Scheduled]:
        with self.source.schedule(steps) as ready:
            dtype, tables = self.transformer.compute_dtype, ready.modulation
            yield Scheduled(Modulation(tables.blocks.to(dtype), tables.final.to(dtype)), ready.slots)


def compute_in(generator: Generator, dtype: torch.dtype) -> Generator:
    """In float64 sums are rounded so finely that their order does not show in float32 velocities."""
    engine = generator.engine
    for denoiser in engine.denoisers.values():
        for name, parameter in denoiser.transformer.named_parameters():
            parameter.data = parameter.data.to(param_dtype(f"transformer.{name}", dtype))
    sources = {p: getattr(s, "source", s) for p, s in engine.modulations.items()}
    cast = {p: Cast(s, engine.denoisers[p].transformer) for p, s in sources.items()}
    generator.engine = replace(engine, modulations=cast)
    return generator


@pytest.fixture(scope="module")
def one(model: Path) -> Generator:
    return Generator.from_pretrained(model, device="cpu", partition="both")


@pytest.fixture(scope="module")
def expected(requests: dict[str, dict[str, Any]], one: Generator) -> dict[str, dict[str, Any]]:
    """One rank's outcome of each task in float64, and of t2va in float32."""
    found = {task: outcome(compute_in(one, torch.float64), request) for task, request in requests.items()}
    return found | {"float32": outcome(compute_in(one, torch.float32), REQUEST)}


def outcome(generator: Generator, request: dict[str, Any], **how: Any) -> dict[str, Any]:
    result = generator.generate(request, keep=("latents", "noise", "positions"), **how)
    return {"video": result.video, "audio": result.audio, **result.kept}


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def ranks(request: pytest.FixtureRequest, model: Path) -> Iterator[Pool]:
    with pool(request.param.ulysses, request.param.tp) as processes:
        assert processes.run(_load, str(model), timeout=60) == [None] * request.param.size
        yield processes


def _load(ranks: Ranks, model: str) -> None:
    settings = EngineSettings(model=model, device="cpu", partition="both", tp=ranks.tp.size)
    ranks.generator = Generator(load_engine(settings, RankShare(ranks)), replica=Member(ranks))


def _generate(ranks: Ranks, dtype: torch.dtype, request: dict[str, Any], noise: Any = None) -> dict[str, Any]:
    """What the first rank has in the end, and every rank's noise."""
    found = outcome(compute_in(ranks.generator, dtype), request, noise=noise if ranks.leads else None)
    return found if ranks.leads else {name: value for name, value in found.items() if name.startswith("noise")}


def _refused(ranks: Ranks, request: dict[str, Any]) -> str:
    with pytest.raises(RequestError) as caught:
        ranks.generator.generate(request)
    return str(caught.value)


def test_no_sequence_can_be_divided_evenly(requests: Any, expected: Any) -> None:
    assert all(len(expected[task]["token_tags"]) % 2 for task in requests)


@pytest.mark.parametrize("task", ["t2va", "fl2va", "ref2va"])
def test_bit_equal_to_one_rank_in_float64(ranks: Pool, task: str, requests: Any, expected: Any) -> None:
    first = ranks.run(_generate, torch.float64, requests[task], timeout=120)[0]
    for name, value in expected[task].items():
        assert np.array_equal(first[name], value), name


@pytest.mark.parametrize("shape", [Shape(4, 1), Shape(1, 4)], ids=str)
def test_bit_equal_on_four_ranks_of_one_kind(
    shape: Shape, model: Path, one: Generator, adapters: list[dict[str, Any]], expected: Any
) -> None:
    request = {**REQUEST, "adapters": adapters}
    wanted = outcome(compute_in(one, torch.float64), request)
    with pool(shape.ulysses, shape.tp) as processes:
        processes.run(_load, str(model), timeout=60)
        adapted = processes.run(_generate, torch.float64, request, timeout=120)[0]
        first = processes.run(_generate, torch.float64, REQUEST, timeout=120)[0]
    for name in ("final_video_latents", "final_audio_latents"):
        np.testing.assert_allclose(adapted[name], wanted[name], rtol=0, atol=2e-6)
    for name, value in expected["t2va"].items():
        assert np.array_equal(first[name], value), name


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Low ranks, DoRA and whole tensors on layers whose outputs and whose inputs ranks divide."""
    folder = tmp_path_factory.mktemp("adapters")
    layers = {f"blocks.{n}.{name}": size for n in range(2) for name, size in LAYERS.items()}
    torch.manual_seed(0)
    low = {}
    for name, (rows, columns) in layers.items():
        low[f"{name}.lora_A.weight"], low[f"{name}.lora_B.weight"] = (
            torch.randn(3, columns),
            torch.randn(rows, 3) * 0.02,
        )
    save_file(low, folder / "low.safetensors")
    dora = {f"{name}.dora_scale": torch.rand(rows, 1) + 0.5 for name, (rows, _) in layers.items()}
    save_file(low | dora, folder / "dora.safetensors")
    save_file({f"{n}.diff": torch.randn(*size) * 0.02 for n, size in layers.items()}, folder / "whole.safetensors")
    return [{"name": str(folder / f"{n}.safetensors"), "strength": 0.5} for n in ("low", "dora", "whole")]


def test_adapters_on_every_rank(
    ranks: Pool, one: Generator, adapters: list[dict[str, Any]], requests: Any, expected: Any
) -> None:
    """As on one rank; afterwards the base's bits. One rank's refusal is everybody's."""
    request = {**REQUEST, "adapters": adapters}
    wanted = outcome(compute_in(one, torch.float64), request)
    first = ranks.run(_generate, torch.float64, request, timeout=120)[0]
    for name in ("final_video_latents", "final_audio_latents"):
        np.testing.assert_allclose(first[name], wanted[name], rtol=0, atol=2e-6)
        assert np.abs(wanted[name] - expected["t2va"][name]).max() > 1e-2
    assert all("No such file" in said for said in ranks.run(_refused, {**REQUEST, "adapters": [{"name": "gone"}]}))
    again = ranks.run(_generate, torch.float64, REQUEST, timeout=120)[0]
    for name, value in expected["t2va"].items():
        assert np.array_equal(again[name], value), name


def test_close_to_one_rank_in_float32_with_the_callers_noise(ranks: Pool, one: Generator, expected: Any) -> None:
    noise = {"video": expected["t2va"]["noise_video"] * 0.5, "audio": expected["t2va"]["noise_audio"]}
    wanted = outcome(compute_in(one, torch.float32), REQUEST, noise=noise)
    answers = ranks.run(_generate, torch.float32, REQUEST, noise, timeout=120)
    for answer in answers:
        assert np.array_equal(answer["noise_video"], noise["video"])
    for name in ("final_video_latents", "final_audio_latents"):
        np.testing.assert_allclose(answers[0][name], wanted[name], rtol=0, atol=1e-5)
    np.testing.assert_allclose(answers[0]["audio"], wanted["audio"], rtol=0, atol=1e-4)  # the decoder amplifies
    assert np.abs(answers[0]["video"].astype(int) - wanted["video"]).max() <= 1


def _fail(ranks: Ranks, stage: str, rank: int, request: dict[str, Any]) -> dict[str, Any]:
    """One request that `rank` ends with Cancelled in `stage`."""

    def stop(progress: Progress) -> None:
        if ranks.rank == rank and progress.stage == stage:
            raise Cancelled(f"by {rank}")

    began, raised = time.monotonic(), None
    try:
        ranks.generator.generate(request, on_progress=stop)
    except Exception as error:
        raised = error
    return {"error": raised, "seconds": time.monotonic() - began}


@pytest.mark.parametrize(("stage", "rank"), [("denoise", -1), ("decode video", 0)])
def test_cancelling_or_failing_on_any_rank_ends_it_on_all(ranks: Pool, stage: str, rank: int, expected: Any) -> None:
    rank %= ranks.shape.size
    for answer in ranks.run(_fail, stage, rank, REQUEST, timeout=60):
        assert isinstance(answer["error"], Cancelled) and str(answer["error"]) == f"by {rank}", answer
        assert answer["seconds"] < 10
    if stage == "denoise":  # and it goes on
        first = ranks.run(_generate, torch.float64, REQUEST, timeout=120)[0]
        assert np.array_equal(first["video"], expected["t2va"]["video"])


def test_a_file_that_cannot_be_used_is_one_error_on_all(ranks: Pool, tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"no film")
    condition = {"type": "video", "role": "reference", "uri": str(tmp_path / "clip.mp4")}
    request = {**REQUEST, "task": "ref2va", "conditions": [condition]}
    for answer in ranks.run(_fail, "nowhere", 0, request, timeout=60):
        assert isinstance(answer["error"], MediaError), answer


def test_a_request_arrives_whole(requests: dict[str, dict[str, Any]]) -> None:
    import json

    for request in requests.values():
        shift = {} if "sigmas" in request else {"flow_shift": 7.5}
        wanted = parse_request({**request, **shift, "prompt": "ä\u2028\n", "seed": 2**63 - 1})
        assert parse_request(json.loads(json.dumps(wanted.model_dump(mode="json")))) == wanted


def test_real_processes(model: Path, expected: Any) -> None:
    """`gpus=2` starts an interpreter; a cancelled request leaves it usable, a lost one ends the replica."""
    generator = Generator.from_pretrained(model, device="cpu", partition="both", gpus=2)
    assert generator.replica.describe()["ranks"] == {
        "ulysses": 2,
        "tp": 1,
        "why": "Ulysses exchanges least, and memory is no concern here",
    }
    try:
        found = outcome(generator, REQUEST)
        for name in ("final_video_latents", "final_audio_latents"):
            np.testing.assert_allclose(found[name], expected["float32"][name], rtol=0, atol=1e-5)
        assert found["video"].shape == expected["float32"]["video"].shape

        def stop(progress: Progress) -> None:
            if progress.stage == "denoise" and progress.step:
                raise Cancelled("stopped")

        with pytest.raises(Cancelled):
            generator.generate(REQUEST, on_progress=stop)
        assert np.array_equal(generator.generate(REQUEST).video, found["video"])
        other = generator.replica.others._processes[0]
        threading.Timer(0.5, other.kill).start()
        with pytest.raises(WorkerError, match="rank 1 is gone"):
            while True:
                generator.generate(REQUEST)
        with pytest.raises(WorkerError, match="started anew"):
            generator.generate(REQUEST)
    finally:
        generator.close()
    assert other.returncode == -9


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"gpus": 2, "tp": 3}, "tp"),
        ({"gpus": 3}, "gpus"),
        ({"gpus": 2, "device": "cuda:1"}, "device"),
        ({"gpus": 2, "text_encoder": "sharded"}, "text_encoder"),  # the demo's has one key-value head
        ({"gpus": 1, "text_encoder": "sharded"}, "text_encoder"),
        ({"text_encoder": "halved"}, "text_encoder"),
    ],
)
def test_refused_before_anything_is_started(model: Path, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        Generator.from_pretrained(model, **{"device": "cpu", **settings})
    assert caught.value.field == field
