"""Prompts: checked against the official form, laid out, and rewritten where the server has an endpoint for it."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from h3serve.core.request import GenerationRequest, parse_request
from h3serve.media.sources.media_file import SourcePolicy
from h3serve.prompts.endpoint import open_endpoint
from h3serve.prompts.enhance import enhance, shown_images
from h3serve.prompts.linter import check_form
from h3serve.prompts.official_form import needs_of
from h3serve.prompts.prompt_template import MOST_SHOTS, prompt_template
from h3serve.service.http.context import CallerOf, ContextOf
from h3serve.service.http.json_body import parse_json
from h3serve.service.http.openapi_schema import CREATE_BODY, ERRORS
from h3serve.service.http.videos import body_of
from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job import Json, new_id

router = APIRouter(prefix="/v1/prompt", responses=ERRORS)


@router.post("/check", openapi_extra=CREATE_BODY)
async def check_prompt(request: Request, caller: CallerOf) -> JSONResponse:
    """Complaints about the prompt of an H3 request. Its media are counted by kind and not looked at."""
    del caller
    fields = parse_json(await request.body())

    def check() -> Json:
        wanted = parse_request(fields)
        found = check_form(wanted.prompt, needs_of(wanted))
        return {"object": "prompt.check", "complaints": [complaint.to_json() for complaint in found]}

    return JSONResponse(await to_thread.run_sync(check))


@router.post("/template", openapi_extra=CREATE_BODY)
async def lay_out_prompt(
    request: Request, caller: CallerOf, shots: Annotated[int, Query(ge=1, le=MOST_SHOTS)] = 1
) -> JSONResponse:
    """The official form for an H3 request, with `{…}` where something is to be filled in."""
    del caller
    fields = {"prompt": "{…}", **parse_json(await request.body())}
    text = prompt_template(needs_of(parse_request({**fields, "prompt": fields["prompt"] or "{…}"})), shots)
    return JSONResponse({"object": "prompt.template", "prompt": text})


@router.post("/enhance", openapi_extra=CREATE_BODY)
async def enhance_prompt(request: Request, caller: CallerOf, context: ContextOf) -> JSONResponse:
    """The request's prompt, rewritten in the official form; its images are shown to the model that does it.

    The reply has the `original` too, and what is still wrong with the answer. Nothing is generated.
    """
    endpoint = open_endpoint(context.settings.enhance)
    if endpoint is None:
        raise Refusal(403, "this server rewrites no prompts: it was started without --enhance-url")
    context.check_open()
    job_id = new_id()
    async with body_of(request, context, job_id) as body:
        frozen = (await context.prepare(body, caller, job_id)).request
        wanted = GenerationRequest.model_validate(frozen)
        folder = context.folder.incoming(job_id)
        policy = SourcePolicy(folders=(folder,), base=folder)
        images = await context.work(caller, lambda: shown_images(wanted, policy)) if wanted.conditions else []
    made = await enhance(wanted.prompt, needs_of(wanted), endpoint, images)
    return JSONResponse({"object": "prompt.enhanced", **made.to_json()})
