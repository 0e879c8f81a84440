"""The check of a prompt against the official form."""

from __future__ import annotations

from h3serve.prompts.alignment_line import check_alignment
from h3serve.prompts.complaint import Complaint
from h3serve.prompts.field_checks import check_fields, check_language
from h3serve.prompts.label_checks import check_labels
from h3serve.prompts.length_checks import check_lengths
from h3serve.prompts.official_form import PromptNeeds
from h3serve.prompts.prompt_parts import take_apart
from h3serve.prompts.shot_checks import check_shots
from h3serve.prompts.speaker_checks import check_speakers

MOST_COMPLAINTS = 100


def check_form(prompt: str, needs: PromptNeeds) -> list[Complaint]:
    """What is wrong with `prompt` for these needs, in the order of the text, at most `MOST_COMPLAINTS`.

    A prompt without any field is plain text, about which there is one complaint.
    """
    parts = take_apart(prompt)
    found = list(check_fields(parts, needs))
    if parts.fields:
        checks = (check_alignment, check_shots, check_speakers, check_labels, check_lengths)
        found += [complaint for check in checks for complaint in check(parts, needs)]
        found += check_language(parts)
    return sorted(dict.fromkeys(found), key=lambda complaint: (complaint.start, complaint.end))[:MOST_COMPLAINTS]
