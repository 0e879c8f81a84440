from dataclasses import replace

import pytest
import torch

from h3serve.models.kernels.attention import sdpa
from h3serve.models.transformer.denoiser import to_compute_dtype
from tests.models.tiny_transformer import TINY, tiny_denoiser, tiny_request


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=2e-5 * float(b.abs().max()))


def test_velocity_of_target_rows_only() -> None:
    denoiser, request = tiny_denoiser(), tiny_request()
    video, audio = request.run(denoiser)
    assert (video.shape, audio.shape) == ((24, 96), (10, 32))
    assert video.dtype == audio.dtype == torch.float32
    all_video, all_audio = request.run(denoiser, condition_video_rows=0, condition_audio_rows=0)
    assert torch.equal(video, all_video[4:])
    assert torch.equal(audio, all_audio[3:])


@pytest.mark.parametrize("part", ["text_states", "positions", "video_rows", "audio_rows"])
def test_every_input_is_felt(part: str) -> None:
    denoiser, request = tiny_denoiser(), tiny_request()
    changed = getattr(request, part).clone()
    changed[1] += 1.0  # for the rows of both modalities: a condition row
    for before, after in zip(request.run(denoiser), request.run(denoiser, **{part: changed}), strict=True):
        assert not close(after, before)


@pytest.mark.parametrize("timestep", [0, 1, 2])
@pytest.mark.parametrize("modality", [0, 1, 2])
def test_modulation_row_is_three_times_timestep_plus_modality(timestep: int, modality: int) -> None:
    denoiser, request = tiny_denoiser(), tiny_request()
    transformer = denoiser.transformer
    transformer.attention = lambda q, k, v: torch.zeros_like(q)  # then rows do not see each other
    static = request.prepare(transformer)
    x = transformer.embed_rows(request.video_rows, request.audio_rows, static)
    index = 3 * request.timestep_index + static.tags
    modulation = denoiser.modulation(request.timesteps)
    before = transformer.run_blocks(x, modulation, index=index, rope=static.rope)
    modulation.blocks[:, 3 * timestep + modality] += 1.0
    after = transformer.run_blocks(x, modulation, index=index, rope=static.rope)
    moved = (before != after).any(dim=1)
    assert torch.equal(moved, (request.timestep_index == timestep) & (request.tags == modality))


def test_rows_go_where_the_index_lists_say() -> None:
    """A shuffled sequence with shuffled lists is the same request."""
    denoiser, request = tiny_denoiser(), tiny_request()
    order = torch.randperm(len(request.tags), generator=torch.Generator().manual_seed(1))
    place = order.argsort()  # old row -> new row
    shuffled = replace(
        request,
        positions=request.positions[order],
        tags=request.tags[order],
        timestep_index=request.timestep_index[order],
        text_index=place[request.text_index],
        video_index=place[request.video_index],
        audio_index=place[request.audio_index],
    )
    for a, b in zip(shuffled.run(denoiser), request.run(denoiser), strict=True):
        assert close(a, b)


def test_padding_changes_nothing() -> None:
    """Padding rows (tag -1, a segment of their own for attention) leave the real rows as they are."""
    denoiser, request = tiny_denoiser(), tiny_request()
    expected = request.run(denoiser)
    used, pad = len(request.tags), 16

    def segments(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = [(t[:used], t[used:]) for t in (q, k, v)]
        return torch.cat([sdpa(*segment) for segment in zip(*parts, strict=True)])

    denoiser.transformer.attention = segments
    padded = replace(
        request,
        positions=torch.cat([request.positions, torch.zeros(pad, 3, dtype=torch.float64)]),
        tags=torch.cat([request.tags, torch.full((pad,), -1)]),
        timestep_index=torch.cat([request.timestep_index, torch.zeros(pad, dtype=torch.int64)]),
    )
    for a, b in zip(padded.run(denoiser), expected, strict=True):
        assert close(a, b)


def test_text_is_refined_among_itself() -> None:
    """The refiner sees neither positions nor media, and each text row sees all others."""
    transformer, request = tiny_denoiser().transformer, tiny_request()
    text = request.prepare(transformer).text
    assert torch.equal(text, request.prepare(transformer, positions=torch.zeros_like(request.positions)).text)
    changed = request.text_states.clone()
    changed[-1] += 1
    assert (request.prepare(transformer, text_states=changed).text != text).any(dim=1).all()


def test_attention_is_replaceable() -> None:
    denoiser, request = tiny_denoiser(), tiny_request()
    shapes = []

    def spy(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        shapes.append((q.shape, k.shape, v.shape))
        return sdpa(q, k, v)

    expected = request.run(denoiser)
    denoiser.transformer.attention = spy
    assert torch.equal(request.run(denoiser)[0], expected[0])
    assert shapes == [((48, 3, 128),) * 3] * TINY.num_layers


def test_bfloat16_stream_between_float32_ends() -> None:
    denoiser, request = tiny_denoiser(), tiny_request()
    expected = request.run(denoiser)
    to_compute_dtype(denoiser, torch.bfloat16)
    static = request.prepare(denoiser.transformer)
    assert static.text.dtype == static.rope.cos.dtype == static.rope.sin.dtype == torch.bfloat16
    for half, full in zip(request.run(denoiser), expected, strict=True):
        assert half.dtype == torch.float32
        assert 0 < (half - full).norm() < 0.03 * full.norm()


def test_a_forward_leaves_its_inputs_alone() -> None:
    denoiser, request = tiny_denoiser(), tiny_request()
    static, modulation = request.prepare(denoiser.transformer), denoiser.modulation(request.timesteps)
    held = [request.video_rows, request.audio_rows, static.text, modulation.blocks]
    copies = [tensor.clone() for tensor in held]
    first, second = (
        denoiser.transformer(
            request.video_rows,
            request.audio_rows,
            static=static,
            modulation=modulation,
            timestep_index=request.timestep_index,
        )
        for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(held, copies, strict=True))
    assert torch.equal(first[0], second[0])
