"""A cut network loads exactly its share, out of either layout."""

from pathlib import Path

import pytest
import torch

from h3serve.models.key_map import Entry
from h3serve.runtime.parallel.process_group import ProcessGroup
from h3serve.runtime.parallel.tensor_parallel import shard_denoiser
from h3serve.weights.demo.demo_random import write_demo_checkpoint
from h3serve.weights.files.checkpoint_folder import open_folder
from h3serve.weights.files.tensor_index import TensorIndex
from h3serve.weights.formats import load
from h3serve.weights.formats.entry_rows import Part, runs_of
from h3serve.weights.formats.load import load_component
from h3serve.weights.formats.opened_component import open_component

COUNT = 2


def test_positions_are_taken_from_each_group() -> None:
    assert Part(0, 1, 2, groups=3).positions(12).tolist() == [2, 3, 6, 7, 10, 11]
    assert Part(0, 1, 2).positions(4).tolist() == [2, 3]


@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_shares_put_together_are_the_whole(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "demo"
    write_demo_checkpoint(folder, layout=layout)
    model = open_folder(folder)
    whole = load_component(open_component(model, "transformer", "fl2va"), dtype=torch.float32).state_dict()
    parts: dict[str, Part] = {}

    def note(entry: Entry, index: TensorIndex, part: Part | None = None) -> object:
        if part:
            parts[entry.target] = part
        return runs_of(entry, index, part)

    monkeypatch.setattr(load, "runs_of", note)
    for index in range(COUNT):
        shard = shard_denoiser(ProcessGroup(range(COUNT), index))
        share = load_component(
            open_component(model, "transformer", "fl2va"), dtype=torch.float32, shard=shard
        ).state_dict()
        assert share.keys() == whole.keys()
        for name, value in share.items():
            expected = whole[name]
            if name in parts:
                part = parts[name]
                assert part.index == index and value.numel() * COUNT == expected.numel()
                expected = expected.index_select(part.axis, part.positions(expected.shape[part.axis]))
            assert torch.equal(value, expected), name
    kinds = {name.rsplit(".", 2)[1] for name in parts}
    assert kinds == {"qkv_proj", "out_proj", "fc1", "fc2"}
