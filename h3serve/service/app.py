"""The FastAPI application, put together."""

from __future__ import annotations

from importlib import resources
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import Response

from h3serve.service import about, content, events, videos
from h3serve.service.context import Context
from h3serve.service.replies import install
from h3serve.service.schema import component_schemas
from h3serve.service.shield import Shield

_PAGES = {
    "/": ("index.html", "text/html"),
    "/docs": ("docs.html", "text/html"),
    "/web/page.js": ("page.js", "text/javascript"),
    "/web/docs.js": ("docs.js", "text/javascript"),
    "/web/page.css": ("page.css", "text/css"),
    "/favicon.ico": ("icon.svg", "image/svg+xml"),
}


def make_app(context: Context) -> FastAPI:
    """The application of one server."""
    app = FastAPI(title="h3serve", version="1", docs_url=None, redoc_url=None)
    app.state.context = context
    install(app)
    for part in (videos, content, events, about):
        app.include_router(part.router)
    app.include_router(_pages())
    app.add_middleware(Shield, metrics=context.metrics)
    _describe_body(app)
    return app


def _pages() -> APIRouter:
    """The web page and the API page: files of this package, read once."""
    router = APIRouter(include_in_schema=False)
    for path, (name, kind) in _PAGES.items():
        data = (resources.files("h3serve.service") / "web" / name).read_bytes()
        router.add_api_route(path, _fixed(data, kind), methods=["GET"])
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
