"""Networks that visit the device give the bits of networks that stay; outside the block they have no weights."""

from pathlib import Path

import pytest
import torch

from h3serve.models.transformer import denoiser
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.models.transformer.modulation import Modulation
from h3serve.runtime.offload.placement import Placement, Resident, Streaming, from_files, from_host
from tests.models.tiny_transformer import TINY, tiny_denoiser, tiny_request
from tests.runtime.stores import tiny_index, write_tiny

CPU = torch.device("cpu")
HOW = [None, Streaming(), Streaming(depth=2, cyclic=True), Streaming(resident_blocks=2), Streaming(depth=0)]


def run(network: Denoiser) -> tuple[torch.Tensor, ...]:
    return tiny_request().run(network)


def placed(folder: Path, source: str, stream: Streaming | None) -> Placement[Denoiser]:
    if source == "host":
        return from_host(tiny_denoiser(), "transformer", device=CPU, stream=stream)
    with torch.device("meta"):
        module = Denoiser(TINY).eval().requires_grad_(False)
    index, entries = tiny_index(folder), denoiser.key_map(TINY, "original").entries
    return from_files(
        module,
        "transformer",
        index,
        entries,
        dtype_of=lambda name: denoiser.param_dtype(name, torch.float32),
        device=CPU,
        stream=stream,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    write_tiny(path)
    return path


@pytest.mark.parametrize("source", ["host", "files"])
@pytest.mark.parametrize("stream", HOW, ids=str)
@torch.inference_mode()
def test_same_bits_wherever_the_weights_are(folder: Path, source: str, stream: Streaming | None) -> None:
    expected = run(tiny_denoiser())
    placement = placed(folder, source, stream)
    for _ in range(2):
        with placement as network:
            for _ in range(2):
                assert all(torch.equal(a, b) for a, b in zip(run(network), expected, strict=True))
        assert all(p.is_meta for p in network.parameters())


def test_a_failed_visit_can_be_followed_by_a_good_one(folder: Path) -> None:
    placement = placed(folder, "host", Streaming())
    with pytest.raises(ValueError, match="stopped"), placement:
        raise ValueError("stopped")
    expected = run(tiny_denoiser())
    with placement as network:
        assert torch.equal(run(network)[0], expected[0])


def test_weights_left_on_meta_are_left_there() -> None:
    network = tiny_denoiser()
    for block in network.modulation.blocks:
        block.to("meta")
    with from_host(network, "transformer", device=CPU, stream=None) as visiting:
        assert visiting.modulation.blocks[0].adaln_proj.linear.weight.is_meta
        assert not visiting.modulation.time_embedder.proj_in.weight.is_meta


def test_resident_stays() -> None:
    network = tiny_denoiser()
    with Resident(network) as inside:
        assert inside is network
    assert not any(p.is_meta for p in network.parameters())
    assert isinstance(network.modulation(torch.tensor([0.5])), Modulation)
