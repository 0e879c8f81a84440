"""What a prompt may hold, as far as it shows without the model's tokenizer (spec/text_encoder.md 7.3, 7.7)."""

from __future__ import annotations

import re
import unicodedata

from h3serve.core.errors import RequestError
from h3serve.core.limits import LIMITS

# They mark where images and videos are; in a prompt they would announce some that are not there.
VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")

_TAG = re.compile(r"<\|?/?\w+\|?>")  # may be one token, whatever is in it
_WORD_OR_DIGIT = re.compile(r"[^\W\d_]+|\d")  # the tokenizer never joins two of them


def check_prompt(prompt: str) -> None:
    """Raises RequestError for a prompt that is empty, too long, or spells out tokens of a vision block."""
    if not prompt.strip():
        raise RequestError("prompt", prompt, "a non-empty text")
    if found := [token for token in VISION_TOKENS if token in prompt]:
        raise RequestError("prompt", prompt, f"it must not contain {' or '.join(found)}")
    check_length(fewest_tokens(prompt), prompt, at_least=True)


def check_length(tokens: int, prompt: str, *, at_least: bool = False) -> None:
    """Raises RequestError for more tokens than the limit; `at_least`: there may be more than were counted."""
    if tokens > LIMITS.max_prompt_tokens:
        count = f"{'at least ' if at_least else ''}{tokens} tokens"
        raise RequestError("prompt", prompt, f"it has {count}, at most {LIMITS.max_prompt_tokens} are taken")


def fewest_tokens(prompt: str) -> int:
    """A number of tokens that no tokenizer of the model's kind stays below: its words and digits."""
    text, tags = _TAG.subn(" ", unicodedata.normalize("NFC", prompt))
    return tags + len(_WORD_OR_DIGIT.findall(text))
