"""The released noise recipe of spec/scheduler.md 4.4-4.6."""

import pytest
import torch

from h3serve.core import segments
from h3serve.core.errors import RequestError
from h3serve.pipeline.noise import draw, latent_shape, normal, replace
from h3serve.pipeline.packing import audio_to_latents, rows_to_video, video_to_rows

CANVAS = (96, 64)
TARGET = segments.target(CANVAS, 107)
PICTURE = segments.image((64, 64))
CLIP = segments.video((64, 32), 56, 32_000)


def test_video_and_audio_restart_the_same_seed() -> None:
    noise = draw(7, [], TARGET)
    assert noise.video.shape == (1, 24, 32, 4, 6) and noise.audio.shape == (356, 32)
    assert torch.equal(noise.video, torch.randn(1, 24, 32, 4, 6, generator=torch.Generator().manual_seed(7)))
    assert torch.equal(noise.audio.flatten()[:9], noise.video.flatten()[:9])  # audio is drawn as rows
    assert not torch.equal(draw(8, [], TARGET).video, noise.video)


def test_condition_noise_is_the_prefix_of_a_longer_draw() -> None:
    noise = draw(7, [PICTURE, segments.audio(8_000), CLIP], TARGET)
    longer = normal((1, 24, 32 + 2, 4, 4), 7)
    assert torch.equal(noise.conditions[0], longer[:, :, :1])
    assert not torch.equal(noise.conditions[0], normal((1, 24, 1, 4, 4), 7))
    assert noise.conditions[1].shape == latent_shape(CLIP)
    assert [tuple(s.shape) for s in noise.sounds] == [(20, 32), (80, 32)]


def test_every_draw_has_its_own_generator_and_seed() -> None:
    """Posterior 42 whatever the request's seed, sound conditions seed + 1, the target's sound the seed itself."""

    def fresh(seed: int, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    noise = draw(7, [PICTURE, segments.audio(8_000), CLIP], TARGET)
    assert torch.equal(noise.audio, fresh(7, 356, 32))
    # CLIP is 56 frames, 17 latent frames of 2x4, and a second of sound, 40 latents a channel.
    for drawn, expected in (
        (noise.posterior, (fresh(42, 1, 24, 1, 4, 4), fresh(42, 1, 24, 17, 2, 4))),
        (noise.conditions, (fresh(7, 1, 24, 34, 4, 4)[:, :, :1], fresh(7, 1, 24, 34, 2, 4)[:, :, :17])),
        (noise.sounds, (fresh(8, 20, 32), fresh(8, 80, 32))),
    ):
        assert len(drawn) == len(expected) and all(torch.equal(a, b) for a, b in zip(drawn, expected, strict=True))


def test_explicit_noise_replaces_by_name_and_shape() -> None:
    drawn = draw(1, [PICTURE], TARGET)
    mine = torch.zeros_like(drawn.video)
    assert torch.equal(replace(drawn, {"video": mine.numpy()}).video, mine)
    for wrong in ({"video": mine[:, :, :1]}, {"conditions": []}, {"colour": mine}):
        with pytest.raises(RequestError, match="noise"):
            replace(drawn, wrong)


def test_rows_round_trip_and_order() -> None:
    latents = torch.arange(24 * 2 * 4 * 6, dtype=torch.float32).reshape(1, 24, 2, 4, 6)
    rows = video_to_rows(latents)
    assert rows.shape == (2 * 2 * 3, 96)
    assert rows[0, 5] == latents[0, 1, 0, 0, 1]  # channel 1, dy 0, dx 1
    assert rows[0, 2] == latents[0, 0, 0, 1, 0]  # dy 1
    assert rows[1, 0] == latents[0, 0, 0, 0, 2] and rows[3, 0] == latents[0, 0, 0, 2, 0]
    assert torch.equal(rows_to_video(rows, latents.shape), latents)
    sound = torch.arange(12.0).reshape(6, 2)
    assert audio_to_latents(sound)[1, 0].tolist() == [6, 8, 10]  # right channel, latent channel 0
