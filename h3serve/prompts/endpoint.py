"""An OpenAI-compatible endpoint that somebody runs or rents: one question, one answer, within bounds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from h3serve.core.errors import EndpointError, RequestError
from h3serve.core.settings import option
from h3serve.media.sources.http_client import Bounds, OutgoingError, exchange

MOST_BYTES = 2**20  # of an answer: the longest prompt is a sixteenth
_MOST_TOKENS = 4096
# Silence is the rule while a large model writes. The operator names the endpoint, so it may be inside the own network.
_BOUNDS = Bounds(total_seconds=300.0, connect_seconds=300.0, private_addresses=True)

Message = dict[str, Any]


@dataclass(frozen=True)
class EnhanceSettings:
    """Which endpoint rewrites prompts; none: nobody does."""

    enhance_url: str | None = option(
        None, "OpenAI-compatible endpoint that rewrites prompts, such as http://127.0.0.1:8001/v1."
    )
    enhance_model: str | None = option(None, "The model to ask for there.")
    enhance_key: Path | None = option(None, "File with the API key of that endpoint.")


@dataclass(frozen=True)
class Endpoint:
    """Where to ask, for which model, with which key."""

    url: str
    model: str
    key: str | None = None
    bounds: Bounds = _BOUNDS

    async def ask(self, messages: list[Message]) -> str:
        """The text that a chat is answered with; EndpointError where there is none."""
        body = {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": _MOST_TOKENS}
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        url = self.url.rstrip("/") + "/chat/completions"
        received = bytearray()
        try:
            async with exchange("POST", url, self.bounds, headers=headers, content=json.dumps(body).encode()) as reply:
                if not reply.is_success:
                    raise _failed(f"it answered {reply.status_code}")
                async for chunk in reply.aiter_raw():
                    received += chunk
                    if len(received) > MOST_BYTES:
                        raise _failed(f"its answer has more than {MOST_BYTES} bytes")
        except OutgoingError as error:
            raise _failed(str(error)) from None
        return _text(bytes(received))


def open_endpoint(settings: EnhanceSettings) -> Endpoint | None:
    """The endpoint that `settings` name; None without a URL. RequestError for half of what is needed."""
    url = settings.enhance_url
    if url is None:
        for name in ("enhance_model", "enhance_key"):
            if (value := getattr(settings, name)) is not None:
                raise RequestError(f"--{name.replace('_', '-')}", str(value), "it belongs to an --enhance-url")
        return None
    if not url.lower().startswith(("http://", "https://")):
        raise RequestError("--enhance-url", url, "an http:// or https:// address")
    if not settings.enhance_model:
        raise RequestError("--enhance-model", settings.enhance_model, "name the model to ask for at --enhance-url")
    return Endpoint(url, settings.enhance_model, _key(settings.enhance_key))


def _key(file: Path | None) -> str | None:
    try:
        key = file.read_text(encoding="ascii").strip() if file is not None else None
    except OSError as error:
        raise RequestError("--enhance-key", str(file), f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        key = ""
    if key is not None and (not key or not key.isprintable()):
        raise RequestError("--enhance-key", str(file), "the file holds one key and nothing else")
    return key


def _text(answer: bytes) -> str:
    """The text of the first choice."""
    try:
        content = json.loads(answer)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise _failed("its answer is no chat completion") from None
    if not isinstance(content, str) or not content.strip():
        raise _failed("its answer has no text")
    return content


def _failed(reason: str) -> EndpointError:
    return EndpointError(f"the endpoint that rewrites prompts failed: {reason}")
