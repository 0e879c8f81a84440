"""Order, labels, timestamps and tags of what the encoder is shown."""

import numpy as np
import pytest
import torch

from h3serve.core.encoder_tokens import video_blocks, vision_tokens
from h3serve.models.text_encoder.text_encoder import TextEncoderConfig
from h3serve.models.text_encoder.tokenizer import Tokenizer
from h3serve.pipeline.prompt_builder import (
    BuiltPrompt,
    Shown,
    ShownAudio,
    ShownImage,
    ShownVideo,
    block_timestamps,
    present,
)
from h3serve.weights.formats.tokenizer_files import load_tokenizer
from tests.tiny_tokenizer import encoder_config, write_tokenizer

IMAGE_BLOCK, VIDEO_BLOCK = "[image]", "[video]"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return load_tokenizer(folder, TextEncoderConfig.from_dict(encoder_config()))


def picture(value: int = 0, height: int = 256, width: int = 288) -> ShownImage:
    return ShownImage(np.full((height, width, 3), value, dtype=np.uint8))


def video(frames: int = 25, *, has_audio: bool = False, value: int = 0) -> ShownVideo:
    return ShownVideo(np.full((frames, 64, 96, 3), value, dtype=np.uint8), has_audio)


def check(tokenizer: Tokenizer, shown: BuiltPrompt, *pieces: str) -> None:
    """Ids, types and tags are those of separately tokenized pieces and of blocks sized as above."""
    pads = {IMAGE_BLOCK: [tokenizer.image_pad] * 72, VIDEO_BLOCK: [tokenizer.video_pad] * 6}
    ids, types, tags = [], [], []
    for piece in pieces:
        if piece in pads:
            inside, kind = pads[piece], 1 if piece == IMAGE_BLOCK else 2
            ids += [tokenizer.vision_start, *inside, tokenizer.vision_end]
            types += [0, *[kind] * len(inside), 0]
            tags += [0] * (len(inside) + 2)
        else:
            text = tokenizer.ids(piece)
            ids, types, tags = ids + text, types + [0] * len(text), tags + [1] * len(text)
    assert shown.inputs.token_ids.tolist() == ids
    assert shown.inputs.token_types.tolist() == types
    assert shown.tags.tolist() == tags


@pytest.mark.parametrize("prompt", ["a fox", "  led by spaces, followed too  ", "雪\n<d>你好</d>", "A"])
def test_t2va_is_the_prompt_verbatim(tokenizer: Tokenizer, prompt: str) -> None:
    shown = present("t2va", prompt, tokenizer)
    check(tokenizer, shown, prompt)
    assert shown.inputs.image_patches is None and shown.inputs.video_grids is None
    assert shown.inputs.token_ids.dtype == shown.tags.dtype == torch.int64


def test_a_merge_never_crosses_pieces(tokenizer: Tokenizer) -> None:
    """The space of `: ` and `A` would become one token if they were tokenized together."""
    shown = present("ref2va", "A", tokenizer, references=[ShownAudio()])
    assert shown.inputs.token_ids.tolist() != tokenizer.ids("<Audio 1>: A")
    check(tokenizer, shown, "<Audio 1>: ", "A")


def test_fl2va_numbers_keyframes_in_order(tokenizer: Tokenizer) -> None:
    shown = present("fl2va", "p", tokenizer, keyframes=[picture(0), picture(255)])
    check(tokenizer, shown, "<Picture 1>: ", IMAGE_BLOCK, "<Picture 2>: ", IMAGE_BLOCK, "p")
    assert shown.inputs.image_grids.tolist() == [[1, 16, 18]] * 2
    first, second = shown.inputs.image_patches.chunk(2)
    assert (first == -1).all() and (second == 1).all()


def test_ref2va_labels_follow_request_order_and_count_per_kind(tokenizer: Tokenizer) -> None:
    """A clip's sound takes an audio number, and its label stands before the clip's."""
    references: list[Shown] = [
        ShownAudio(),
        picture(10),
        video(has_audio=True, value=20),
        video(30, value=30),
        picture(40),
        ShownAudio(),
    ]
    shown = present("ref2va", " p", tokenizer, references=references)
    clip = ["<0.2 seconds>", VIDEO_BLOCK, "<1.0 seconds>", VIDEO_BLOCK]
    pieces = ["<Audio 1>: ", "<Picture 1>: ", IMAGE_BLOCK, "<Audio 2>: ", "<Video 1>: ", *clip]
    pieces += ["<Video 2>: ", *clip, "<Picture 2>: ", IMAGE_BLOCK, "<Audio 3>: ", " p"]
    check(tokenizer, shown, *pieces)
    assert shown.inputs.video_grids.tolist() == [[2, 4, 6]] * 2
    for patches, value in zip(shown.inputs.video_patches.chunk(2), (20, 30), strict=True):
        assert patches.unique().tolist() == [pytest.approx(value / 127.5 - 1)]


def test_keyframes_beside_references_are_not_shown(tokenizer: Tokenizer) -> None:
    shown = present("ref2va", "p", tokenizer, keyframes=[picture()], references=[ShownAudio()])
    check(tokenizer, shown, "<Audio 1>: ", "p")
    assert shown.inputs.image_patches is None


def test_timestamps() -> None:
    numbers = ["0.2", "1.2", "2.2", "3.2", "4.2", "5.0"]
    assert block_timestamps(124) == [f"<{number} seconds>" for number in numbers]
    assert block_timestamps(48) == ["<0.2 seconds>", "<1.2 seconds>"]
    assert block_timestamps(362)[-1] == "<15.0 seconds>" and len(block_timestamps(362)) == 16


def test_plan_and_presentation_count_the_same(tokenizer: Tokenizer) -> None:
    small, clip = picture(height=64, width=96), video(37)  # the picture is enlarged to 224 x 320
    shown = present("ref2va", "", tokenizer, references=[small, clip])
    blocks = video_blocks(37, 96, 64)
    assert (shown.tags == 0).sum() == vision_tokens(96, 64) + blocks.blocks * blocks.tokens
