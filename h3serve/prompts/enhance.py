"""A prompt rewritten in the official form by a language model, checked, and mended once."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from typing import Any

from PIL import Image

from h3serve.core.errors import EndpointError, RequestError
from h3serve.core.prompt import check_prompt
from h3serve.core.request import GenerationRequest
from h3serve.media.read.image import load_image
from h3serve.media.sources.media_file import ANYWHERE, SourcePolicy
from h3serve.media.sources.open_source import open_source
from h3serve.prompts.alignment_line import alignment_line
from h3serve.prompts.complaint import Complaint
from h3serve.prompts.endpoint import Endpoint, Message
from h3serve.prompts.instructions import complaint_text, system_text, wish_text
from h3serve.prompts.linter import check_form
from h3serve.prompts.official_form import PromptNeeds
from h3serve.prompts.prompt_parts import take_apart

_SIDE = 768  # pixels of the longer side of an image that is sent along
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_FENCE = re.compile(r"^[ \t]*```[^\n]*\n?", re.MULTILINE)


@dataclass(frozen=True)
class EnhancedPrompt:
    """`prompt` as it was rewritten from `original`, what is still wrong with it, and how often was asked."""

    prompt: str
    original: str
    complaints: tuple[Complaint, ...]
    tries: int
    model: str

    def to_json(self) -> dict[str, Any]:
        """The fields by their names."""
        return {**vars(self), "complaints": [complaint.to_json() for complaint in self.complaints]}


async def enhance(prompt: str, needs: PromptNeeds, endpoint: Endpoint, images: list[str]) -> EnhancedPrompt:
    """`prompt` in the official form. `images` are data URIs of the pictures, in the order of their labels.

    An answer with complaints is sent back once; the better of the two is taken. EndpointError where the endpoint fails
    or neither answer is in the form at all.
    """
    shown: list[Message] = [{"type": "text", "text": wish_text(prompt, needs)}]
    for number, uri in enumerate(images, 1):
        shown += [{"type": "text", "text": f"Picture {number}:"}, {"type": "image_url", "image_url": {"url": uri}}]
    messages: list[Message] = [{"role": "system", "content": system_text(needs)}, {"role": "user", "content": shown}]
    first = await endpoint.ask(messages)
    text, complaints = _checked(first, needs)
    tries = 1
    if complaints:
        tries = 2
        again = complaint_text([complaint.message for complaint in complaints])
        messages += [{"role": "assistant", "content": first}, {"role": "user", "content": again}]
        try:
            other = _checked(await endpoint.ask(messages), needs)
        except EndpointError:
            if not _usable(text):
                raise
        else:
            if not _usable(text) or (_usable(other[0]) and len(other[1]) < len(complaints)):
                text, complaints = other
    if not _usable(text):
        raise EndpointError("the endpoint that rewrites prompts failed: it did not answer in the official form")
    return EnhancedPrompt(text, prompt, tuple(complaints), tries, endpoint.model)


def shown_images(request: GenerationRequest, policy: SourcePolicy = ANYWHERE) -> list[str]:
    """The pictures that have labels, made small, as data URIs. Raises MediaError."""
    conditions = request.references if request.task == "ref2va" else request.conditions
    uris = []
    for condition in conditions:
        if condition.type == "image":
            with open_source(condition.uri, policy) as file:
                image = Image.fromarray(load_image(file))
            image.thumbnail((_SIDE, _SIDE))
            data = io.BytesIO()
            image.save(data, "JPEG", quality=90)
            uris.append("data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode())
    return uris


def _checked(answer: str, needs: PromptNeeds) -> tuple[str, list[Complaint]]:
    """The prompt in an answer, and what is wrong with it. What surrounds it goes; the alignment line is ours."""
    text = _FENCE.sub("", _THOUGHT.sub("", answer)).strip()
    parts = take_apart(text)
    text = text[len(parts.preamble) :] if parts.fields else text
    shots = max([shot.number for shot in parts.shots(needs.description)], default=1)
    if (line := alignment_line(needs, shots)) is not None and parts.fields:
        text = f"{line}\n\n{text}"
    return text, check_form(text, needs)


def _usable(text: str) -> bool:
    """Whether a request may have it as its prompt, and it has fields."""
    try:
        check_prompt(text)
    except RequestError:
        return False
    return bool(take_apart(text).fields)
