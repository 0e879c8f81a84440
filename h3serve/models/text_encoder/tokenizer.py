"""Text to token ids, one piece at a time (spec/text_encoder.md 7.3, 7.7). Files: weights/formats/tokenizer_files.py."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from h3serve.core.errors import CheckpointError
from h3serve.core.prompt import VISION_TOKENS
from h3serve.models.text_encoder.text_encoder import TextEncoderConfig

SPEECH_TOKENS = (
    "<d>",
    "</d>",
    "<|cutoff|>",
    "<|lyrics_start|>",
    "<|lyrics_end|>",
    "<|caption_start|>",
    "<|caption_end|>",
)
# token -> its field in text_encoder/config.json
VISION_FIELDS = dict(
    zip(
        VISION_TOKENS,
        ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id"),
        strict=True,
    )
)


class Tokenizer:
    """The model's own tokenizer, known to hold H3's special tokens; ids are read, never assumed."""

    def __init__(self, backend: PreTrainedTokenizerBase) -> None:
        self._backend = backend
        for token in SPEECH_TOKENS:
            self._single(token)
        self.vision_start, self.vision_end, self.image_pad, self.video_pad = (
            self._single(token) for token in VISION_TOKENS
        )

    def ids(self, piece: str) -> list[int]:
        """The ids of one piece of text: nothing stripped, added or cut off."""
        return self._backend(piece, add_special_tokens=False)["input_ids"]

    @property
    def size(self) -> int:
        """One more than the largest id it can give."""
        return max(self._backend.get_vocab().values()) + 1

    def _single(self, token: str) -> int:
        ids = self.ids(token)
        if len(ids) != 1:
            raise CheckpointError(
                f"tokenizer: {token} splits into {len(ids)} tokens; this is not the tokenizer of MiniMax-H3"
            )
        return ids[0]


def check_tokenizer(tokenizer: Tokenizer, config: TextEncoderConfig) -> None:
    """Raises CheckpointError unless tokenizer and encoder mean the same ids."""
    for token, field in VISION_FIELDS.items():
        (number,) = tokenizer.ids(token)
        if number != config.values[field]:
            raise CheckpointError(
                f"tokenizer: {token} is {number}, but text_encoder/config.json has {field} {config.values[field]}"
            )
    if tokenizer.size > config.vocab_size:
        raise CheckpointError(
            f"tokenizer: ids up to {tokenizer.size - 1}, but the text encoder has {config.vocab_size} embeddings"
        )
