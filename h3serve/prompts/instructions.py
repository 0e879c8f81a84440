"""What a language model is told to write prompts in the official form, in our own words."""

from __future__ import annotations

from h3serve.prompts.alignment_line import alignment_line
from h3serve.prompts.official_form import GENERATED_WORDS, MARKERS, TASK_TYPES, PromptNeeds
from h3serve.prompts.prompt_template import prompt_template

_RULES = """You turn a wish into a prompt for a model that makes a video together with its soundtrack.
Answer with the finished prompt alone: no greeting, no explanation, no Markdown.
Keep everything that was wished for, and add only what agrees with it. Write English; keep spoken words, lyrics and
lettering in their own language, letter by letter.

Shots
- [Shot 1] carries no time. Every later one begins like [Shot 2] At 00:03.500, with minutes, seconds and three decimals.
- Times rise and stay below the length of the video. Shard only where something new is seen; otherwise move the camera.
- Say how the camera moves inside a sentence: what it does, and only where it matters how far and how fast.

Speech
- Whoever is heard gets an id, (S1), (S2), in the order of first voices, and keeps it. Describe a voice when it is new.
- Put words that are spoken or sung into <d>[Language] words</d>, after the id of the speaker. Nothing else is in there.
- A line that goes on over a cut has <scenetrans> on both sides of it. Speech that the end breaks off has <cutoff>.
- Of a voice from off screen say so, and that the lips of who is seen stay closed.
- Text that can be read stands in double quotes.

Sound
- overall_soundscape: one to four sentences on ambience and on the sounds of what happens; N/A only for full silence.
- non_diegetic_music: one to three sentences on music for the audience alone: instruments, tempo, course; N/A if none.

There are no negative prompts: write what is there instead of what is not.
"""

_KEYFRAMES = """
Given images are frames of the video: tell how the action leaves the first one and how it arrives at the last one.
"""

_REFERENCES = """
References
- subject_definitions: a line for each thing that is tracked: <Subject 1> is …, and where it is from. A picture,
  video or audio that is used as a whole has its own line under its label. Use all labels that are given, and no other.
- summary: begins with task types in brackets, joined by +, from: {types}.
- retention_analysis: a line for each defined label: <Label N> (where): marker - explanation. Markers of what is seen:
  {seen}. Markers of audio: {heard}. No speaker ids here.
- detailed_description: a sentence or two on style, then the shots, {least} to {most} words unless a video is edited.
"""


def system_text(needs: PromptNeeds) -> str:
    """The rules of the form for a task."""
    if needs.task == "ref2va":
        seen, heard = ", ".join(MARKERS["Subject"]), ", ".join(MARKERS["Audio"])
        least, most = GENERATED_WORDS
        return _RULES + _REFERENCES.format(types=", ".join(TASK_TYPES), seen=seen, heard=heard, least=least, most=most)
    return _RULES + (_KEYFRAMES if needs.task == "fl2va" else "")


def wish_text(prompt: str, needs: PromptNeeds) -> str:
    """The wish, what is given with it, and the layout of the answer."""
    length = "as long as its audio reference" if needs.seconds is None else f"{needs.seconds:.2f} seconds long"
    lines = [f"The video is {length}.", *_given(needs)]
    if alignment_line(needs) is not None:
        lines.append("The alignment line on top is written for you: leave it out.")
    layout = "\n".join(line for line in prompt_template(needs).splitlines() if line != alignment_line(needs))
    return "\n".join([*lines, "", "Layout, with {…} to be replaced:", layout.strip(), "", "The wish:", prompt])


def complaint_text(complaints: list[str]) -> str:
    """What has to be mended in an answer."""
    listed = "\n".join(f"- {complaint}" for complaint in complaints)
    return f"This is not in the form yet. Mend these points and answer with the whole prompt again:\n{listed}"


def _given(needs: PromptNeeds) -> list[str]:
    names = {0: "the first frame", -1: "the last frame"}
    if needs.task == "fl2va":
        return [f"Picture {n} is {names[index]}." for n, index in enumerate(needs.keyframes, 1)]
    counts = (("Picture", needs.pictures), ("Video", needs.videos), ("Audio", needs.most_audios))
    labels = [f"<{kind} {n}>" for kind, count in counts for n in range(1, count + 1)]
    return [f"Given: {', '.join(labels)}."] if labels else []
