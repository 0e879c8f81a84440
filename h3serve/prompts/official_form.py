"""The official form of a prompt, as data: fields and their order, task types, markers, labels, lengths.

The model was trained on prompts in this form, which the release publishes as a guide for writers. Bounds that the
guide does not give are ours, and say so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from h3serve.core.geometry import FPS, aligned_frames
from h3serve.core.limits import Task
from h3serve.core.request import GenerationRequest

SOUNDSCAPE, MUSIC = "overall_soundscape", "non_diegetic_music"
DEFINITIONS, SUMMARY, RETENTION = "subject_definitions", "summary", "retention_analysis"
_BASE = ("integrated_multimodal_description", SOUNDSCAPE, MUSIC)
FIELDS: dict[Task, tuple[str, ...]] = {
    "t2va": _BASE,
    "fl2va": _BASE,
    "ref2va": (DEFINITIONS, SUMMARY, RETENTION, "detailed_description", SOUNDSCAPE, MUSIC),
}
ALL_FIELDS = tuple(dict.fromkeys(name for names in FIELDS.values() for name in names))
NOTHING = "N/A"  # of soundscape and music that there are not

TASK_TYPES = (
    "reference generation",
    "video editing",
    "video continuation",
    "keyframe completion",
    "audio reuse",
    "audio reference",
)
_SEEN = ("fully_preserved", "partially_preserved", "attribute_transfer", "weak_reference")
MARKERS = {
    "Subject": _SEEN,
    "Picture": _SEEN,
    "Video": _SEEN,
    "Audio": ("fully_copy", "partially_copy", "reference", "weak_reference"),
}
LABEL = re.compile(r"<(Subject|Picture|Video|Audio) ([1-9]\d*)>")
SPEAKER = re.compile(r"\(S[1-9]\d*(?:, ?S[1-9]\d*)*\)")
SPOKEN = re.compile(r"<d>((?:(?!<d>).)*?)</d>", re.DOTALL)

SENTENCES = {SOUNDSCAPE: 4, MUSIC: 3}  # at most
GENERATED_WORDS = (350, 500)  # of a detailed_description that edits or continues nothing
MOST_WORDS = 700  # ours: of any description; the published requests have up to 430
FEWEST_WORDS = 25  # ours: of a description in the three-field form
SUMMARY_WORDS = 150  # ours: "one short paragraph"


@dataclass(frozen=True)
class PromptNeeds:
    """What a prompt is for: its task, the media that are given beside it, and the seconds of the video.

    A video may bring a soundtrack, which takes an audio label: there are from `audios` to `most_audios` of those.
    Keyframes beside references have no label.
    """

    task: Task
    keyframes: tuple[int, ...] = ()  # 0 the first frame, -1 the last
    pictures: int = 0
    videos: int = 0
    audios: int = 0
    most_audios: int = 0
    seconds: float | None = None  # None: a reference's audio decides

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, in order."""
        return FIELDS[self.task]

    @property
    def description(self) -> str:
        """Name of the field that tells what happens."""
        return "detailed_description" if self.task == "ref2va" else "integrated_multimodal_description"

    def given(self, kind: str) -> int | None:
        """The highest number that a label of `kind` may have; None for subjects, which the prompt itself defines."""
        return {"Picture": self.pictures, "Video": self.videos, "Audio": self.most_audios}.get(kind)


def needs_of(request: GenerationRequest) -> PromptNeeds:
    """What the prompt of `request` is for, its duration snapped to the lengths that the model makes."""
    kinds = [condition.type for condition in request.references]
    seconds, audios = request.target.duration_seconds, kinds.count("audio") + kinds.count("video_audio")
    keyframes = tuple(c.frame_index for c in request.keyframes if c.frame_index is not None)
    return PromptNeeds(
        request.task,
        keyframes,
        pictures=kinds.count("image") if request.task == "ref2va" else len(keyframes),
        videos=kinds.count("video") + kinds.count("video_audio"),
        audios=audios,
        most_audios=audios + kinds.count("video"),
        seconds=None if seconds is None else aligned_frames(round(seconds * FPS)) / FPS,
    )


def words_outside(text: str) -> int:
    """The number of words of `text`; marks between angle brackets count as none."""
    return len(re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", re.sub(r"<[^<>]*>", " ", text)))


def sentence_count(text: str) -> int:
    """The number of sentences of `text`, roughly: full stops inside numbers and labels end none."""
    return len(re.findall(r"[.!?…]+[\"”'’)]*(?=\s|$)", text.strip())) or 1
