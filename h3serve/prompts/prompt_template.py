"""The official form with blanks to fill in: fields, alignment line and times of cuts are there already."""

from __future__ import annotations

from h3serve.prompts.alignment_line import alignment_line
from h3serve.prompts.official_form import DEFINITIONS, MUSIC, RETENTION, SOUNDSCAPE, SUMMARY, PromptNeeds

_SOUND = {
    SOUNDSCAPE: "{ambience, sounds of what moves, voices without words; 1 to 4 sentences, N/A for silence}",
    MUSIC: "{music that only the audience hears; 1 to 3 sentences, or N/A}",
}
MOST_SHOTS = 15  # of the longest video, one a second
_FEW_SECONDS = 5.0  # where a reference's audio decides how long the video is


def prompt_template(needs: PromptNeeds, shots: int = 1) -> str:
    """A prompt for these needs with `shots` shots of equal length; each `{…}` is to be replaced."""
    texts = {**_SOUND, needs.description: _description(needs, shots)}
    if needs.task == "ref2va":
        texts |= _references(needs)
    gap = "\n" if needs.task == "ref2va" else " "
    line = alignment_line(needs, shots)
    fields = [f"{name}:{gap}{texts[name]}" for name in needs.fields]
    return "\n\n".join([line, *fields] if line else fields)


def _description(needs: PromptNeeds, shots: int) -> str:
    seconds = needs.seconds or _FEW_SECONDS
    first = "{what is seen, what happens, how the camera moves}"
    if needs.task != "ref2va":
        first = "{style}, {framing and subject}. " + first
    if needs.task == "fl2va" and 0 in needs.keyframes:
        first += " {how it begins from Picture 1}"
    heads = [f"[Shot 1] {first}"]
    for number in range(2, shots + 1):
        minutes, rest = divmod(seconds * (number - 1) / shots, 60)
        heads.append(f"[Shot {number}] At {int(minutes):02}:{rest:06.3f}, the camera cuts to {{what is new}}.")
    if needs.task == "fl2va" and -1 in needs.keyframes:
        heads[-1] += f" {{how it arrives at Picture {len(needs.keyframes)}}}"
    if needs.task == "ref2va":
        return "\n".join(["{The style of the video, in one or two sentences.}", *heads])
    return " ".join(heads)


def _references(needs: PromptNeeds) -> dict[str, str]:
    """The three fields that name references: one subject for every picture, the others by their own label."""
    labels = [f"<Subject {n}>" for n in range(1, needs.pictures + 1)]
    defined = [f"{label} is {{who or what}} in <Picture {n}>." for n, label in enumerate(labels, 1)]
    kept = [f"{label} (appears in [Shot 1]): fully_preserved - {{what is kept}}" for label in labels]
    for n in range(1, needs.videos + 1):
        defined.append(f"<Video {n}> is {{what it gives: source, motion, camera, rhythm}}.")
        kept.append(f"<Video {n}>: weak_reference - {{what is kept}}")
    for n in range(1, needs.most_audios + 1):
        defined.append(f"<Audio {n}> is {{whose voice, which music, which sound}}.")
        kept.append(f"<Audio {n}>: reference - {{what is taken from it}}")
    types = "reference generation" + (" + audio reference" if needs.most_audios else "")
    named = ", ".join(labels) or "<Video 1>"
    return {
        DEFINITIONS: "\n".join(defined),
        SUMMARY: f"[{types}] {{What happens with {named}, in a few sentences.}}",
        RETENTION: "\n".join(kept),
    }
