"""The text encoder over several ranks: one rank's token states, each rank with its slice."""

from collections.abc import Iterator

import pytest
import torch

from h3serve.core.errors import RequestError
from h3serve.models.text_encoder.text_encoder import TextEncoder, TextEncoderConfig
from h3serve.runtime.parallel.process_group import ProcessGroup, Ranks
from h3serve.runtime.parallel.tensor_parallel import part_of_state, shard_text_encoder
from tests.models.text_encoder.test_text_encoder import TINY, mixed
from tests.rank_pool import Pool, pool

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CONFIG = TextEncoderConfig.from_dict({**TINY, "text_config": {**TINY["text_config"], "num_key_value_heads": 4}})


def whole() -> TextEncoder:
    torch.manual_seed(5)
    return TextEncoder(CONFIG).double()


def _cut(ranks: Ranks) -> TextEncoder:
    with torch.device("meta"):
        encoder = TextEncoder(CONFIG)
    part_of_state(encoder, shard_text_encoder(ranks.world)(encoder), whole().state_dict())
    encoder.reset_buffers()
    return encoder


def _states(ranks: Ranks) -> torch.Tensor:
    return _cut(ranks).encode(mixed())


def _held(ranks: Ranks) -> int:
    return linears(_cut(ranks))


def linears(encoder: TextEncoder) -> int:
    """Values in the language model's linears."""
    layers = encoder.model.language_model.layers
    return sum(p.numel() for name, p in layers.named_parameters() if name.split(".")[-2] in LINEARS)


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with pool(ulysses=request.param) as processes:
        yield processes


def test_the_same_token_states_on_every_rank(ranks: Pool) -> None:
    """Text, pictures and a clip; rotary tables are float32, so float64 weights leave only the order of sums."""
    expected = whole().encode(mixed())
    for states in ranks.run(_states, timeout=60):
        torch.testing.assert_close(states, expected, rtol=0, atol=1e-12)


def test_each_rank_holds_its_slice(ranks: Pool) -> None:
    assert ranks.run(_held, timeout=60) == [linears(whole()) // ranks.shape.size] * ranks.shape.size


def test_heads_that_cannot_be_divided_are_refused() -> None:
    with torch.device("meta"):
        encoder = TextEncoder(CONFIG)
    with pytest.raises(RequestError, match="4 key-value heads cannot be divided"):
        shard_text_encoder(ProcessGroup(range(3), 0))(encoder)
