"""The demo checkpoint's own tokenizer: byte-level BPE with the special tokens of Qwen and H3."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCABULARY = 400  # bytes and merges; the special tokens come on top
QWEN_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
H3_TOKENS = (
    "<d>",
    "</d>",
    "<|cutoff|>",
    "<|lyrics_start|>",
    "<|lyrics_end|>",
    "<|caption_start|>",
    "<|caption_end|>",
)
# Words, single digits, punctuation, line ends and other blanks never share a token.
PIECES = r" ?\p{L}[\p{L}\p{M}']*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SAMPLE = (
    "A woman walks through the rain at night while the camera follows her slowly along the street.",
    "The sound of waves, wind and seagulls; a warm voice says: <d>welcome back</d>.",
    "integrated_multimodal_description: overall_soundscape: non_diegetic_music:",
    "subject_definitions: summary: retention_analysis: detailed_description:",
    "<Picture 1>: <Picture 2>: <Audio 1>: <Video 1>: <0.2 seconds> <1.2 seconds> <10.2 seconds>",
    "The video begins with the first picture and ends with the last picture.",
    "Soft light, shallow depth of field, close-up, wide shot, slow motion, 24 frames per second.",
)


def build_tokenizer(sample: Iterable[str] = SAMPLE, vocabulary: int = VOCABULARY) -> Tokenizer:
    """A tokenizer with the merges of `sample`; the same one every time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=sorted(alphabet), min_frequency=1, show_progress=False
    )
    tokenizer.train_from_iterator(sample, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in QWEN_TOKENS + H3_TOKENS])
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """`tokenizer.json` and its config, and the vocabulary in two files as the release has it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.model.save(str(folder))
    write_json(folder / "tokenizer_config.json", _config(tokenizer))


def write_processor(tokenizer: Tokenizer, folder: Path) -> None:
    """The tokenizer again, and the released sizes for pictures and clips."""
    write_tokenizer(tokenizer, folder)
    for kind, shortest, longest in (("image", 65536, 16777216), ("video", 4096, 25165824)):
        name = "preprocessor_config.json" if kind == "image" else "video_preprocessor_config.json"
        processor = "Qwen2VLImageProcessorFast" if kind == "image" else "Qwen3VLVideoProcessor"
        value = {
            "size": {"longest_edge": longest, "shortest_edge": shortest},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "processor_class": "Qwen3VLProcessor",
            f"{kind}_processor_type": processor,
        }
        write_json(folder / name, value)


def write_json(file: Path, value: Any) -> None:
    """JSON as a person would read it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=2) + "\n")


def _config(tokenizer: Tokenizer) -> dict[str, Any]:
    added = {
        str(number): {
            "content": token.content,
            "lstrip": token.lstrip,
            "normalized": token.normalized,
            "rstrip": token.rstrip,
            "single_word": token.single_word,
            "special": token.special,
        }
        for number, token in tokenizer.get_added_tokens_decoder().items()
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": [*QWEN_TOKENS[1:], *H3_TOKENS],
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
