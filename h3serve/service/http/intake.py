"""From a body and its files to a frozen request and its plan, or a refusal that names the field."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from h3serve.core.errors import RequestError
from h3serve.core.media_probe import MediaProbe
from h3serve.core.plan import Plan
from h3serve.core.request import GenerationRequest, parse_request
from h3serve.core.settings import ADAPTER_SUFFIX, check_quality
from h3serve.media.read.probe import probe_media
from h3serve.media.sources.media_file import IngestLimits, SourcePolicy
from h3serve.media.sources.ssrf_rules import ALLOWED, url_problem
from h3serve.service.http.api_keys import Caller
from h3serve.service.http.body import Body
from h3serve.service.http.form_fields import fields_of
from h3serve.service.http.input_files import Sources
from h3serve.service.http.openai_fields import to_h3
from h3serve.service.http.peer_fields import without_peer_fields
from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.input_names import write_names
from h3serve.service.jobs.job import Json, NewJob
from h3serve.service.service_settings import ServiceSettings
from h3serve.service.workers.supervisor import Supervisor
from h3serve.system.named_files import named_files, sha256_of

_MAX_PRIORITY = 10


@dataclass(frozen=True)
class Intake:
    """Reads the requests of one server. `inputs_of(job id, owner)` finds an earlier job's inputs."""

    settings: ServiceSettings
    supervisor: Supervisor
    inputs_of: Callable[[str, str], Path | None]

    def prepare(self, body: Body, *, job_id: str, folder: Path, caller: Caller) -> NewJob:
        """A job whose inputs lie in `folder` and whose request names them there.

        Raises RequestError (MediaError, CapacityError) or Refusal; the caller removes `folder` then.
        """
        fields = to_h3(without_peer_fields(fields_of(body)), self.supervisor.size_rules)
        self._check_model(fields.pop("model", None))
        priority = self._priority(fields.pop("priority", None), caller)
        webhook_url = self._webhook(fields.pop("webhook_url", None))
        request = parse_request(fields)
        if request.task not in self.supervisor.tasks:
            served = f"this server serves {', '.join(self.supervisor.tasks)}"
            raise RequestError("task", request.task, served)
        request = self._pinned(request)
        check_quality(request.quality, quality=self.settings.quality, quantize=self.settings.quantize)
        frozen, probes, digests = self._freeze(request, body, folder, caller)
        plan = Plan.resolve(request, probes, rules=self.supervisor.size_rules, model=self.supervisor.model_size)
        self.supervisor.check_fits(plan)
        return NewJob(
            id=job_id,
            task=request.task,
            request=frozen,
            plan=plan.describe(),
            owner=caller.name,
            priority=priority,
            fingerprint=_fingerprint(frozen, digests, priority, webhook_url),
            webhook_url=webhook_url,
        )

    def _freeze(
        self, request: GenerationRequest, body: Body, folder: Path, caller: Caller
    ) -> tuple[Json, list[MediaProbe], list[str]]:
        """Copy every condition's file; (request naming the copies, probes, hashes)."""
        settings = self.settings
        limits = IngestLimits(max_file_bytes=settings.limits.file)
        sources = Sources(
            uploads=body.files,
            inputs_of=lambda job_id: self.inputs_of(job_id, caller.name),
            policy=SourcePolicy(folders=settings.folders, limits=limits),
            fetch_urls=settings.fetch_urls,
        )
        files = [
            sources.take(condition.uri, folder, f"{index:02}", f"conditions[{index}]")
            for index, condition in enumerate(request.conditions)
        ]
        sources.check_all_used()
        for upload in body.files:
            upload.path.unlink()
        write_names(folder, sources.names)
        probes = [probe_media(file) for file in files]
        frozen = request.model_dump(mode="json")
        for condition, file in zip(frozen["conditions"], files, strict=True):
            condition["uri"] = file.path.name
        return frozen, probes, [_digest(file.path) for file in files]

    def _pinned(self, request: GenerationRequest) -> GenerationRequest:
        """The request with the content hash of each adapter, so that a later attempt has the same bytes or fails."""
        folder = self.settings.adapter_folder
        if not request.adapters:
            return request
        if folder is None:
            raise RequestError("adapters", f"{len(request.adapters)} given", "this server has no adapter folder")
        there, pinned = named_files(folder, ADAPTER_SUFFIX), []
        for index, choice in enumerate(request.adapters):
            if choice.name not in there:
                raise RequestError(f"adapters[{index}].name", choice.name, "a name from this server's list of adapters")
            found = sha256_of(there[choice.name])
            if choice.sha256 not in (None, found):
                raise RequestError(f"adapters[{index}].sha256", choice.sha256, f"the file's hash is {found} now")
            pinned.append(choice.model_copy(update={"sha256": found}))
        return request.model_copy(update={"adapters": tuple(pinned)})

    def _check_model(self, model: Any) -> None:
        name = self.settings.model_name
        if model is not None and model not in (name, *self.settings.aliases):
            raise Refusal(
                404, f"model {str(model)[:80]!r} is not here; this server has {name!r}", code="model_not_found"
            )

    def _priority(self, value: Any, caller: Caller) -> int:
        if value is None:
            return 0
        top = caller.max_priority
        if not isinstance(value, int) or isinstance(value, bool) or not -_MAX_PRIORITY <= value <= top:
            raise RequestError("priority", value, f"a whole number from {-_MAX_PRIORITY} to {top}; higher goes first")
        return value

    def _webhook(self, url: Any) -> str | None:
        if url is None:
            return None
        if self.settings.webhook_secret is None:
            raise RequestError("webhook_url", url, "this server has no webhook secret, so it sends no webhooks")
        if not isinstance(url, str):
            raise RequestError("webhook_url", url, ALLOWED)
        if (problem := url_problem(url, private=self.settings.webhook_private)) is not None:
            raise RequestError("webhook_url", url, problem)
        return url


def _fingerprint(*parts: Any) -> str:
    """What makes two requests the same one."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
