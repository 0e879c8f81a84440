"""The tokenizer from its files: both spellings, the release's ids, and folders that lack something."""

import json
from pathlib import Path

import pytest
from transformers import Qwen2TokenizerFast

from h3serve.core.errors import CheckpointError
from h3serve.models.text_encoder.text_encoder import TextEncoderConfig
from h3serve.models.text_encoder.tokenizer import SPEECH_TOKENS, Tokenizer
from h3serve.weights.formats.tokenizer_files import check_processor_files, load_tokenizer
from tests.paths import official
from tests.tiny_tokenizer import FIRST_SPECIAL, SPECIAL, encoder_config, write_tokenizer

CONFIG = TextEncoderConfig.from_dict(encoder_config())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer")


def test_special_tokens_are_single_ids(folder: Path) -> None:
    tokenizer = load_tokenizer(folder, CONFIG)
    assert tokenizer.vision_start == FIRST_SPECIAL + 1 and tokenizer.video_pad == FIRST_SPECIAL + 4
    assert tokenizer.ids("".join(SPEECH_TOKENS)) == list(range(FIRST_SPECIAL + 5, FIRST_SPECIAL + 12))
    assert tokenizer.size == FIRST_SPECIAL + len(SPECIAL)


def test_text_is_taken_as_it_is(folder: Path) -> None:
    tokenizer = load_tokenizer(folder, CONFIG)
    raw = "  b\n雪 "
    assert len(tokenizer.ids(raw)) == len(raw.encode()) and tokenizer.ids("") == []
    assert tokenizer.ids("b A") == [*tokenizer.ids("b"), 256]


def test_one_file_does_as_well(folder: Path, tmp_path: Path) -> None:
    expected = load_tokenizer(folder, CONFIG).ids(" A<d>雪</d> ")
    Qwen2TokenizerFast.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / "saved" / name).unlink(missing_ok=True)
    assert load_tokenizer(tmp_path / "saved", CONFIG).ids(" A<d>雪</d> ") == expected


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer_config.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load_tokenizer(folder, CONFIG)


@pytest.mark.parametrize("name", ["vocab.json", "tokenizer_config.json"])
def test_a_broken_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_tokenizer(folder, CONFIG)


def test_a_stock_tokenizer_is_refused(tmp_path: Path) -> None:
    stock = write_tokenizer(tmp_path, tuple(token for token in SPECIAL if token not in SPEECH_TOKENS))
    with pytest.raises(CheckpointError, match="<d> splits into 3"):
        load_tokenizer(stock, CONFIG)


def test_a_stranger_to_the_encoder_is_refused(folder: Path) -> None:
    other = TextEncoderConfig.from_dict(encoder_config(image_token_id=7))
    with pytest.raises(CheckpointError, match="image_token_id 7"):
        load_tokenizer(folder, other)
    text = {"num_hidden_layers": 50, "hidden_size": 16, "vocab_size": 260}
    with pytest.raises(CheckpointError, match="260 embeddings"):
        load_tokenizer(folder, TextEncoderConfig.from_dict(encoder_config(text_config=text)))


@pytest.fixture(scope="module")
def released() -> Tokenizer:
    folder = official() / "FL2VA"
    config = json.loads((folder / "text_encoder" / "config.json").read_text())
    return load_tokenizer(folder / "processor", TextEncoderConfig.from_dict(config))


def test_ids_of_the_release(released: Tokenizer) -> None:
    assert [released.ids(token) for token in SPEECH_TOKENS] == [[n] for n in range(151669, 151676)]
    vision = released.vision_start, released.vision_end, released.image_pad, released.video_pad
    assert vision == (151652, 151653, 151655, 151656)
    assert released.ids("<0.2 seconds>") == [27, 15, 13, 17, 6486, 29]
    assert released.ids(" <d>雪 </d>")[1] == 151669 and released.ids("")[:1] == []


def test_processor_settings_of_the_release() -> None:
    folder = official() / "FL2VA" / "processor"
    assert {"preprocessor_config.json", "video_preprocessor_config.json"} <= {file.name for file in folder.iterdir()}
    assert check_processor_files(folder) is None


def test_processor_settings_may_be_absent(tmp_path: Path) -> None:
    assert check_processor_files(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("preprocessor_config.json", "size", {"longest_edge": 1_003_520, "shortest_edge": 65_536}),
        ("preprocessor_config.json", "patch_size", 14),
        ("preprocessor_config.json", "max_pixels", 1_003_520),
        ("preprocessor_config.json", "image_mean", [0.48, 0.45, 0.4]),
        ("video_preprocessor_config.json", "size", {"longest_edge": 16_777_216, "shortest_edge": 65_536}),
        ("video_preprocessor_config.json", "cap_pixels_per_frame", True),
    ],
)
def test_other_processor_settings_are_refused(tmp_path: Path, name: str, field: str, value: object) -> None:
    (tmp_path / name).write_text(json.dumps({field: value}))
    with pytest.raises(CheckpointError, match=f"{name}: {field} is"):
        check_processor_files(tmp_path)


@pytest.mark.parametrize(("content", "why"), [("[]", "not a JSON object"), ("{", "not JSON")])
def test_broken_processor_settings_are_refused(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=why):
        check_processor_files(tmp_path)
