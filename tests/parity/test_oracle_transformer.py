"""Every evaluation of recorded requests: rows in, velocity out.

Recorded in float32 with diffusers' pipeline and the checkpoint, one .npz per request (`scripts/oracle`).
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from h3serve.models.transformer.denoiser import Denoiser, key_map
from h3serve.models.transformer.transformer_config import TransformerConfig
from tests.models.tiny_transformer import load
from tests.parity.recorded import CASES


@pytest.fixture(scope="module")
def denoisers(oracle_checkpoint: Path) -> dict[str, Denoiser]:
    return {name: read(oracle_checkpoint / name) for name in ("transformer", "transformer_ref")}


def read(folder: Path) -> Denoiser:
    config = TransformerConfig.from_dict(json.loads((folder / "config.json").read_text()))
    denoiser = Denoiser(config).eval().requires_grad_(False)
    tensors = load_file(folder / "diffusion_pytorch_model.safetensors")
    load(denoiser, key_map(config, "diffusers"), tensors)
    return denoiser


def evaluations(denoiser: Denoiser, arrays: dict[str, torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Our velocities at every recorded evaluation, from the recorded rows."""
    static = denoiser.transformer.prepare(
        arrays["text_states"],
        arrays["position_ids"],
        tags=arrays["token_tags"],
        text_index=arrays["text_indices"],
        video_index=arrays["video_indices"],
        audio_index=arrays["audio_indices"],
        condition_video_rows=int(arrays["condition_video_rows"]),
        condition_audio_rows=int(arrays["condition_audio_rows"]),
    )
    for step, row_timesteps in enumerate(arrays["row_timesteps"]):
        timesteps, index = row_timesteps.unique(return_inverse=True)
        yield denoiser.transformer(
            arrays["step_video_rows"][step],
            arrays["step_audio_rows"][step],
            static=static,
            modulation=denoiser.modulation(timesteps),
            timestep_index=index,
        )


@pytest.mark.parametrize("case", CASES)
def test_velocities(case: str, oracle: Path, denoisers: dict[str, Denoiser]) -> None:
    with np.load(oracle / f"{case}.npz") as file:
        names = [n for n in file.files if np.issubdtype(file[n].dtype, np.number)]
        arrays = {name: torch.from_numpy(np.asarray(file[name])) for name in names}
    denoiser = denoisers["transformer_ref" if case.startswith("ref2va") else "transformer"]
    skip = {kind: int(arrays[f"condition_{kind}_rows"]) for kind in ("video", "audio")}
    for step, velocities in enumerate(evaluations(denoiser, arrays)):
        for kind, ours in zip(("video", "audio"), velocities, strict=True):
            theirs = arrays[f"step_{kind}_velocity"][step, skip[kind] :]
            error = float((ours - theirs).abs().max() / theirs.abs().max())
            assert error <= 1e-5, f"{kind} at evaluation {step}"
