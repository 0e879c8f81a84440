"""The FastAPI application, put together."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import PurePath
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import Response
from fastapi.routing import APIRoute

from h3serve.service.http import adapters, admin, health, prompts, synchronous, video_content, video_events, videos
from h3serve.service.http.allowed_hosts import hosts_of
from h3serve.service.http.context import Context
from h3serve.service.http.openapi_schema import component_schemas
from h3serve.service.http.security_headers import SecurityHeaders
from h3serve.service.jobs.error_replies import install

_PAGES = {"index.html": "/", "docs.html": "/docs"}
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def make_app(context: Context) -> FastAPI:
    """The application of one server."""
    app = FastAPI(title="h3serve", version="1", docs_url=None, redoc_url=None)
    app.state.context = context
    install(app)
    parts = (video_events, synchronous, videos, video_content, prompts, health, adapters, admin)
    routers = [part.router for part in parts] + [_pages()]
    for router in (*routers, _heads(routers)):
        app.include_router(router)
    hosts = hosts_of(context.settings.host, context.settings.allowed_hosts)
    app.add_middleware(SecurityHeaders, metrics=context.metrics, hosts=hosts)
    _describe_body(app)
    return app


def _heads(routers: Iterable[APIRouter]) -> APIRouter:
    """HEAD wherever there is GET; uvicorn leaves the body out."""
    heads = APIRouter(include_in_schema=False)
    for route in (route for router in routers for route in router.routes):
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()):
            heads.add_api_route(
                route.path,
                route.endpoint,
                methods=["HEAD"],
                dependencies=route.dependencies,
                response_class=route.response_class,
            )
    return heads


def _pages() -> APIRouter:
    """The web page and the API page: files of this package, read once."""
    router = APIRouter(include_in_schema=False)
    for file in (resources.files("h3serve.service") / "web").iterdir():
        path = _PAGES.get(file.name, f"/web/{file.name}")
        kind = _TYPES[PurePath(file.name).suffix]
        router.add_api_route(path, _fixed(file.read_bytes(), kind), methods=["GET"])
    return router


def _fixed(data: bytes, kind: str) -> Any:
    def page() -> Response:
        return Response(data, media_type=kind, headers={"Cache-Control": "no-cache"})

    return page


def _describe_body(app: FastAPI) -> None:
    """Add what the hand-read body refers to; the document is made when first asked for."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        document.setdefault("components", {}).setdefault("schemas", {}).update(component_schemas())
        return document

    app.openapi = openapi  # type: ignore[method-assign]
