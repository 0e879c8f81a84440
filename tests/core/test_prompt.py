"""How long a prompt may be, as far as it shows without a tokenizer, and what it may not spell out."""

import json

import pytest

from h3serve.core.errors import RequestError
from h3serve.core.limits import LIMITS
from h3serve.core.prompt import check_length, check_prompt, fewest_tokens
from tests.paths import official

TEXTS = [
    "A red fox trots through snow.",
    "It doesn't stop: don't, we'll, I'd, they're.",
    "12345 steps, 3.14 m, x²y and ½ cup",
    "雪の中を赤い狐が走る。快跑!",
    "e\u0301te\u0301 and हिन्दी and हिन्दीहिन्दी",
    "<d>[English] Go!</d> <|lyrics_start|>la la<|lyrics_end|> <Picture 1> snake_case_words",
    "def main():\n\n    return  0\t# ok\r\n",
    "İstanbul ǅ ﬁn ａｂｃ １２",
]


@pytest.mark.parametrize(
    ("text", "words_and_digits"),
    [("A red fox.", 3), ("in 2026", 5), ("don't", 2), ("<d>Go!</d>", 3), ("<|lyrics_start|>", 1), (" \n...", 0)],
)
def test_words_and_digits_are_counted(text: str, words_and_digits: int) -> None:
    assert fewest_tokens(text) == words_and_digits


def test_no_text_has_fewer_tokens_than_that() -> None:
    """By the release's own tokenizer."""
    from transformers import Qwen2TokenizerFast

    tokenizer = Qwen2TokenizerFast.from_pretrained(official() / "FL2VA" / "processor", local_files_only=True)
    published = [json.loads(file.read_text())["prompt"] for file in (official() / "requests").glob("*.json")]
    for text in [*TEXTS, *published, " ".join(TEXTS)]:
        assert fewest_tokens(text) <= len(tokenizer(text, add_special_tokens=False)["input_ids"]), text
    assert all(len(tokenizer(text)["input_ids"]) < LIMITS.max_prompt_tokens / 8 for text in published)


def test_a_prompt_of_too_many_tokens_is_refused_with_the_number() -> None:
    check_prompt("word " * 8192)
    with pytest.raises(RequestError, match="^prompt: .* at least 8193 tokens, at most 8192 are taken"):
        check_prompt("word " * 8193)
    check_length(8192, "x")
    with pytest.raises(RequestError, match="^prompt: 'x' .* it has 8193 tokens, at most 8192"):
        check_length(8193, "x")


@pytest.mark.parametrize("token", ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"])
def test_tokens_of_a_vision_block_are_refused_by_name(token: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_prompt(f"look: {token}")
    assert caught.value.field == "prompt" and caught.value.allowed == f"it must not contain {token}"


def test_all_of_them_are_named() -> None:
    with pytest.raises(RequestError, match=r"contain <\|vision_start\|> or <\|image_pad\|>$"):
        check_prompt("<|image_pad|><|vision_start|>")
    check_prompt("<|vision_start |> <d>speech</d> <|lyrics_start|>la<|lyrics_end|>")
