"""The check of prompts: nothing is invented on correct ones, planted mistakes of every kind are found."""

import json
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h3serve.core.request import parse_request
from h3serve.prompts.complaint import Complaint
from h3serve.prompts.linter import check_form
from h3serve.prompts.official_form import needs_of, sentence_count, words_outside
from tests.paths import official
from tests.prompts.prompt_texts import correct, needs

CORRECT = correct()
LONG = " A gull cries twice over the water."
WORDS = "the tide goes out and the boats lie on their sides in the mud until it comes back again "  # 18
ZH = "我们今天一大早就从家里出发了路上一直在下雨可是谁也没有抱怨" * 4

# kind, prompt, what stands there, what is planted instead, words of the complaint
PLANTED = [
    ("fields", "baker", "\n\nnon_diegetic_music: N/A", "", "non_diegetic_music: is missing"),
    ("fields", "tea", "overall_soundscape:", "overall_soundscapes:", "exactly so"),
    ("fields", "sign", "integrated_multimodal_description:", "**Integrated multimodal description:**", "exactly so"),
    ("fields", "harbour", "overall_soundscape: Small", "non_diegetic_music: N/A\n\noverall_soundscape: Small", "order"),
    ("fields", "argument", "non_diegetic_music: N/A", "non_diegetic_music:", "is empty"),
    ("fields", "market", "non_diegetic_music: N/A", "non_diegetic_music: none", "is N/A"),
    ("fields", "choir", "integrated_multimodal_description:", "detailed_description:", "no field of t2va"),
    ("fields", "radio", "integrated", "Here is the prompt you asked for.\n\nintegrated", "before the first field"),
    ("fields", "pets", "[reference generation + audio reference] ", "", "task types in brackets"),
    ("fields", "style", "[video editing]", "[video restyling]", "no task type"),
    ("alignment", "portrait", "(from [Shot 1])", "(from [Shot 2])", "for these images"),
    (
        "alignment",
        "ship",
        "For the target video, at 0.00 seconds into the target video, <Picture 1> (from [Shot 1]) is fully referenced.",
        "",
        "the first line has to be",
    ),
    ("alignment", "bridge", "the 8.00-second", "the 8.000-second", "8.00-second"),
    ("alignment", "flower", "the 5.17-second", "the 5.00-second", "5.17-second"),
    ("alignment", "door", "Picture 2 (from Shot 2)", "Picture 2 (from Shot 1)", "from Shot 2"),
    ("alignment", "lamp", "<Picture 2> (from [Shot 1]) aligns", "<Picture 1> (from [Shot 1]) aligns", "Picture 2"),
    ("alignment", "summit", "(from [Shot 2])", "(from [Shot 1])", "[Shot 2]"),
    ("alignment", "glass", "6.58-second mark of the target video.\n", "6.58-second mark of the target video.", "blank"),
    (
        "alignment",
        "silence",
        "integrated",
        "For the target video, at 0.00 seconds into the target video, <Picture 1> is fully referenced.\n\nintegrated",
        "remove it",
    ),
    (
        "alignment",
        "letter",
        "<Picture 1> (from [Shot 1]) aligns with the 7.29-second mark",
        "<Picture 1> (from [Shot 1]) aligns with the 0.00-second mark",
        "7.29-second",
    ),
    ("cuts", "harbour", "At 00:03.500,", "At 00:08.500,", "is not after 8.500"),
    ("cuts", "harbour", "At 00:07.250,", "At 00:10.250,", "the video ends"),
    ("cuts", "argument", "At 00:06.000,", "At 6 s,", "MM:SS.mmm"),
    ("cuts", "market", "[Shot 2] At 00:05.500, the", "[Shot 2] The", "needs the time"),
    ("cuts", "choir", "[Shot 1] Live", "[Shot 1] At 00:00.000, live", "no time"),
    ("cuts", "radio", "[Shot 2] At", "[Shot 3] At", "followed by number 3"),
    ("cuts", "baker", "[Shot 1] ", "", "begins with [Shot 1]"),
    ("cuts", "goeson", "[Shot 2] At 00:05.125,", "Shot 2: At 00:05.125,", "number in brackets"),
    ("cuts", "dance", "At 00:10.500,", "At 00:10.5,", "MM:SS.mmm"),
    ("cuts", "train", "[Shot 2], [Shot 3])", "[Shot 2], [Shot 4])", "no [Shot 4]"),
    ("speakers", "baker", "(S1)", "", "who says it"),
    ("speakers", "tea", "(S1)", "(Speaker 1)", "(S1,S2)"),
    ("speakers", "argument", "(S2)", "(S3)", "(S2) comes next"),
    ("speakers", "market", "<d>[Chinese] 多少", "<d>多少", "language"),
    ("speakers", "choir", "<d>[English] winter does not stay.</d>", "<d>[English] winter does not stay.", "</d>"),
    ("speakers", "noodles", "<d>[Chinese] 看好了，一下就成。</d>", "<d>[Chinese] </d>", "no words"),
    ("speakers", "ship", "<d>[English] Slow ahead.</d>", '"Slow ahead."', "quotes are for"),
    ("speakers", "lamb", "coat, beard and posture stay", "(S1) keeps coat and beard", "has no speakers"),
    ("speakers", "radio", "<scenetrans> sail", "sail", "both sides"),
    ("speakers", "pets", "blue shawl.", "blue shawl, called (S2).", "does not speak"),
    ("references", "lamb", "voice of <Audio 1>, <d>", "voice of <Audio 3>, <d>", "is not there"),
    ("references", "portrait", "the girl in <Picture 1>", "the girl in <Picture 2>", "1 is given"),
    ("references", "sign", "a shop window", "the shop window of <Picture 1>", "none is given"),
    ("references", "train", "in <Picture 1>", "in [Picture 1]", "a label is"),
    ("references", "kitchen", "in <Picture 2>", "of the kind in old farms", "<Picture 2> is given but never named"),
    ("references", "pets", "<Audio 1>: reference", "<Audio 1>: fully_preserved", "the marker of <Audio 1>"),
    ("references", "goeson", "fully_preserved - coat, mane", "kept - coat, mane", "the marker of <Subject 1>"),
    ("references", "camera", "<Subject 2> is the coast", "The coast", "begins with the label"),
    (
        "references",
        "song",
        "<Audio 2>: partially_copy - the band is used, without its last bars.\n",
        "",
        "no line for <Audio 2>",
    ),
    ("references", "storyboard", "<Subject 1> kneels", "<Subject 2> kneels", "is not in subject_definitions"),
    ("length", "harbour", "against the pier.", "against the pier." + LONG * 3, "5 sentences"),
    (
        "length",
        "tea",
        "between the notes.",
        "between the notes. A drum joins. It fades. Then a flute begins.",
        "4 sentences",
    ),
    (
        "length",
        "silence",
        "arcs around it with large amplitude at slow speed; coloured edges of light travel over the walls until the"
        " cube stands still.",
        "moves.",
        "25 to 700",
    ),
    ("length", "baker", "He lets it run", WORDS * 40 + "He lets it run", "25 to 700"),
    ("length", "train", "[Shot 3] At 00:09.000, ", "[Shot 3] At 00:09.000, " + WORDS * 9, "350 to 500"),
    ("length", "storyboard", "[Shot 2] At 00:05.800,", None, "350 to 500"),
    ("length", "lamb", "now speaks to his dog", WORDS * 9, "one short paragraph"),
    ("length", "ship", "Slow ahead.", WORDS * 2, "what is said takes 7"),
    ("length", "cat", "它会弹琴！", ZH, "what is said takes"),
    ("length", "noodles", "再来一次。", ZH, "what is said takes"),
]


def spoken(language: str) -> int:
    return sum(f"[{language}]" in prompt for _, prompt in CORRECT.values())


def test_there_are_forty_in_both_languages_of_speech() -> None:
    assert len(CORRECT) == 40 and spoken("English") >= 12 and spoken("Chinese") >= 12
    assert Counter(needs.task for needs, _ in CORRECT.values()) == {"t2va": 13, "fl2va": 12, "ref2va": 15}


@pytest.mark.parametrize("name", CORRECT)
def test_nothing_is_invented(name: str) -> None:
    wanted, prompt = CORRECT[name]
    assert check_form(prompt, wanted) == []


@pytest.mark.parametrize("name", ["t2va", "fl2va", "ref2va"])
def test_the_published_prompts_pass(name: str) -> None:
    request = parse_request(json.loads((official() / "requests" / f"{name}.json").read_text()))
    assert check_form(request.prompt, needs_of(request)) == []


def planted(name: str, old: str, new: str | None) -> str:
    prompt = CORRECT[name][1]
    assert prompt.count(old), old
    if new is None:  # cut off from there to the end of the field
        at = prompt.index(old)
        return prompt[:at] + prompt[prompt.index("\n\noverall_soundscape") :]
    return prompt.replace(old, new, 1)


@pytest.mark.parametrize(
    ("kind", "name", "old", "new", "words"), PLANTED, ids=[f"{p[0]}-{i % 10}-{p[1]}" for i, p in enumerate(PLANTED)]
)
def test_a_planted_mistake_is_found(kind: str, name: str, old: str, new: str | None, words: str) -> None:
    prompt = planted(name, old, new)
    assert prompt != CORRECT[name][1]
    found = check_form(prompt, CORRECT[name][0])
    assert [c for c in found if c.kind == kind and words in c.message], found
    assert all(0 <= c.start <= c.end <= len(prompt) for c in found)


def test_sixty_are_planted_ten_of_each_kind() -> None:
    kinds = ("fields", "alignment", "cuts", "speakers", "references", "length")
    assert Counter(p[0] for p in PLANTED) == dict.fromkeys(kinds, 10)


def test_a_complaint_says_where() -> None:
    wanted, prompt = CORRECT["harbour"]
    prompt = prompt.replace("At 00:07.250,", "At 00:03.500,")
    [found] = check_form(prompt, wanted)
    assert isinstance(found, Complaint) and prompt[found.start : found.end] == "[Shot 3] At 00:03.500,"


def test_plain_text_has_one_complaint() -> None:
    [found] = check_form("A red ball bounces twice, with two knocks.", needs("t2va"))
    assert found.kind == "fields" and found.message.startswith("plain text")


def test_text_in_another_script_belongs_in_speech_or_quotes() -> None:
    wanted, prompt = CORRECT["tea"]
    [found] = check_form(prompt.replace("a clay teapot", "a 紫砂 teapot"), wanted)
    assert found.kind == "language"


def test_what_depends_on_a_soundtrack_nobody_has_looked_at_is_let_pass() -> None:
    """`video` may bring a soundtrack: <Audio 1> may be its, and the audio file then is <Audio 2>."""
    wanted, prompt = CORRECT["lamb"]
    assert (wanted.audios, wanted.most_audios) == (1, 2)
    assert check_form(prompt.replace("<Audio 1>", "<Audio 2>"), wanted) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [("One. Two! Three?", 3), ("At 3.5 seconds it ends", 1), ('He says "stop." Then nothing.', 2), ("N/A", 1)],
)
def test_sentences_are_counted(text: str, count: int) -> None:
    assert sentence_count(text) == count


def test_words_are_counted_without_labels() -> None:
    assert words_outside("The red-haired girl of <Picture 1> doesn't run, at 3 o'clock.") == 9


PIECES = st.sampled_from([piece for _, prompt in CORRECT.values() for piece in prompt.split(" ")] + ["\n", "", "<d>"])


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES | st.text(max_size=8), max_size=60), st.sampled_from(list(CORRECT)))
def test_no_text_stops_it(pieces: list[str], name: str) -> None:
    text = " ".join(pieces)
    found = check_form(text, CORRECT[name][0])
    assert found and all(0 <= c.start <= c.end <= len(text) for c in found)


@pytest.mark.parametrize(
    ("name", "after", "piece"),
    [
        ("tea", None, " "),
        ("tea", "[Shot 1]", "\n"),
        ("tea", "[Shot 1]", " \n"),
        ("tea", "[Shot 1]", "[Shot 2] "),
        ("tea", "[Shot 1]", "<Picture 1> (from [Shot 1]) "),
        ("tea", "[Shot 1]", "“"),
        ("kitchen", "[Shot 1]", "<d>"),
        ("kitchen", "subject_definitions:", "<d>"),
        ("kitchen", "retention_analysis:", "<Subject 1> (a\n"),
        ("kitchen", "[Shot 1]", "(S1, "),
    ],
)
def test_no_text_is_slow(name: str, after: str | None, piece: str) -> None:
    """Texts of the longest length, which took up to two minutes before their patterns were bounded."""
    wanted, prompt = CORRECT[name]
    many = piece * (60_000 // len(piece))
    text = many if after is None else prompt.replace(after, f"{after} {many}", 1)
    began = time.process_time()
    check_form(text, wanted)
    assert time.process_time() - began < 2
