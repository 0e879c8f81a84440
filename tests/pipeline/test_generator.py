"""Whole generations on the demo checkpoint: repeatable, cancellable, and never a broken file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from h3serve import Generator
from h3serve.core.errors import Cancelled, OutputError, RequestError
from h3serve.pipeline.generation_progress import STAGES, Progress
from h3serve.pipeline.intermediates import GROUPS
from h3serve.weights.demo.demo_random import write_demo_checkpoint

TARGET = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}
REQUEST: dict[str, Any] = {"task": "t2va", "prompt": "rain", "target": TARGET, "num_inference_steps": 2, "seed": 3}


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Generator:
    folder = tmp_path_factory.mktemp("demo") / "checkpoint"
    write_demo_checkpoint(folder)
    return Generator.from_pretrained(folder, device="cpu", partition="both")


def test_same_seed_same_bytes_other_seed_other_clip(generator: Generator, tmp_path: Path) -> None:
    first, again = generator.generate(REQUEST), generator.generate(REQUEST)
    assert first.save(tmp_path / "a.npz").read_bytes() == again.save(tmp_path / "b.npz").read_bytes()
    other = generator.generate({**REQUEST, "seed": 4})
    assert not np.array_equal(first.video, other.video) and not np.array_equal(first.audio, other.audio)


def test_what_ran_before_never_changes_a_sample(generator: Generator) -> None:
    alone = generator.generate(REQUEST)
    generator.generate({**REQUEST, "prompt": "thunder over the hills", "target": {**TARGET, "aspect_ratio": "16:9"}})
    assert np.array_equal(generator.generate(REQUEST).video, alone.video)


def test_solver_and_sigmas_decide_a_clip_and_are_told(generator: Generator) -> None:
    """What a result tells, sent back as a request, gives the same clip; two steps of `multistep` are `euler`'s."""
    first = generator.generate({**REQUEST, "num_inference_steps": 4})
    assert first.stats["solver"] == "euler"
    told = first.stats["sigmas"]
    for name, shift in (("video", 12), ("audio", 3)):  # the demo's, as the release's
        np.testing.assert_allclose(
            told[name], [shift * (4 - i) / (4 + (shift - 1) * (4 - i)) for i in range(5)], atol=1e-6
        )
    explicit = {name: value for name, value in REQUEST.items() if name != "num_inference_steps"} | {"sigmas": told}
    again = generator.generate(explicit)
    assert np.array_equal(again.video, first.video) and np.array_equal(again.audio, first.audio)
    assert again.stats["sigmas"] == told and again.stats["plan"]["steps"] == 4
    other = generator.generate({**explicit, "solver": "multistep"})
    assert other.stats["solver"] == "multistep" and other.stats["sigmas"] == told
    assert not np.array_equal(other.video, first.video) and not np.array_equal(other.audio, first.audio)
    few = generator.generate(REQUEST), generator.generate({**REQUEST, "solver": "multistep"})
    assert np.array_equal(few[0].video, few[1].video)


def test_progress_covers_every_stage_and_step(generator: Generator) -> None:
    seen: list[Progress] = []
    result = generator.generate(REQUEST, on_progress=seen.append)
    assert list(dict.fromkeys(p.stage for p in seen)) == list(STAGES)
    assert [p.step for p in seen if p.stage == "denoise" and p.steps] == [0, 1, 2]
    assert list(result.stats["seconds"]) == list(STAGES)
    assert result.stats["plan"]["frames"] == 107


def test_a_prompt_is_counted_by_its_own_tokens_before_anything_is_read(generator: Generator) -> None:
    seen: list[Progress] = []
    tokens = len(generator.engine.tokenizer.ids("~" * 20_000))
    with pytest.raises(RequestError, match=f"^prompt: .* it has {tokens} tokens, at most 8192 are taken"):
        generator.generate({**REQUEST, "prompt": "~" * 20_000}, on_progress=seen.append)
    assert tokens > 8192 and not seen


def test_kept_groups_and_explicit_noise(generator: Generator) -> None:
    result = generator.generate(REQUEST, keep=GROUPS)
    kept = result.kept
    assert kept["step_video_rows"].shape[0] == 2 and kept["position_ids"].dtype == np.float64
    noise = {"video": kept["noise_video"] * 0.5, "audio": kept["noise_audio"]}
    assert not np.array_equal(generator.generate(REQUEST, noise=noise).video, result.video)
    noise = {"video": kept["noise_video"], "audio": kept["noise_audio"]}
    assert np.array_equal(generator.generate({**REQUEST, "seed": 9}, noise=noise).video, result.video)
    with pytest.raises(RequestError, match="keep"):
        generator.generate(REQUEST, keep=("everything",))


@pytest.mark.parametrize("stage", STAGES)
def test_cancelling_at_any_stage_leaves_no_file(generator: Generator, tmp_path: Path, stage: str) -> None:
    def stop(progress: Progress) -> None:
        if progress.stage == stage:
            raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        generator.generate(REQUEST, on_progress=stop, output=tmp_path / "o.mp4")
    assert not list(tmp_path.iterdir())


def test_cancelling_between_decoded_chunks_leaves_no_file(generator: Generator, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.stage == "decode video" and progress.step > 30:
            raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        generator.generate(REQUEST, on_progress=stop, output=tmp_path / "o.mp4")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("part", ["video_vae", "audio_vae", "transformer"])
def test_nan_weights_are_a_clear_failure(generator: Generator, tmp_path: Path, part: str) -> None:
    engine = generator.engine
    module: Any = {
        "video_vae": engine.video_vae.decoder,
        "audio_vae": engine.audio_vae.decoder,
        "transformer": engine.denoiser("t2va").transformer.final_layer,
    }[part]
    parameter = list(module.parameters())[-1]
    saved = parameter.clone()
    with torch.no_grad():
        parameter.fill_(float("nan"))
    try:
        with pytest.raises(OutputError, match="NaN"):
            generator.generate(REQUEST, output=tmp_path / "o.mp4")
    finally:
        with torch.no_grad():
            parameter.copy_(saved)
    assert not list(tmp_path.iterdir())


def test_wrong_partition_and_tier_are_refused(generator: Generator, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="quality"):
        generator.generate({**REQUEST, "quality": "exact"})
    folder = tmp_path / "m"
    write_demo_checkpoint(folder)
    only = Generator.from_pretrained(folder, device="cpu", partition="fl2va")
    with pytest.raises(RequestError, match=r"task: 'ref2va'.*t2va, fl2va"):
        only.generate({**REQUEST, "task": "ref2va", "conditions": [{"type": "image", "role": "reference", "uri": "x"}]})


@pytest.mark.parametrize("indices", [(0,), (-1,), (0, -1)])
def test_keyframes_change_the_clip(generator: Generator, tmp_path: Path, indices: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    conditions = []
    for index in indices:
        path = tmp_path / f"{index}.png"
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8)).save(path)
        conditions.append({"type": "image", "role": "keyframe", "frame_index": index, "uri": str(path)})
    result = generator.generate({**REQUEST, "task": "fl2va", "conditions": conditions}, keep=("positions",))
    assert result.kept["condition_video_rows"] == 4 * len(indices)
    assert not np.array_equal(result.video, generator.generate(REQUEST).video)
