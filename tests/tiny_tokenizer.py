"""A byte-level tokenizer of 256 symbols, one merge and the special tokens, as files."""

import json
from pathlib import Path

from h3serve.models.text_encoder.tokenizer import SPEECH_TOKENS, VISION_FIELDS, VISION_TOKENS

SPECIAL = ("<|endoftext|>", *VISION_TOKENS, *SPEECH_TOKENS)
FIRST_SPECIAL = 257


def symbols() -> list[str]:
    """The printable stand-in of each byte: itself if visible Latin-1, else from 256 upwards."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte if byte in visible else 256 + hidden.index(byte)) for byte in range(256)]


def write_tokenizer(folder: Path, special: tuple[str, ...] = SPECIAL) -> Path:
    """Writes vocab.json, merges.txt and tokenizer_config.json; special ids follow from 257."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {symbol: number for number, symbol in enumerate(symbols())} | {"ĠA": 256}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\nĠ A\n")
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "additional_special_tokens": list(special[1:]),
        "added_tokens_decoder": {str(FIRST_SPECIAL): {"content": special[0], "special": True}},
        "eos_token": special[0],
        "pad_token": special[0],
        "model_max_length": 262_144,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def encoder_config(**change: object) -> dict[str, object]:
    """A text encoder config whose vision ids are those of the tiny tokenizer."""
    ids = {field: FIRST_SPECIAL + SPECIAL.index(token) for token, field in VISION_FIELDS.items()}
    text = {"num_hidden_layers": 50, "hidden_size": 16, "vocab_size": FIRST_SPECIAL + len(SPECIAL)}
    return {"model_type": "qwen3_vl", "text_config": text, "vision_config": {}} | ids | change
