"""The application: routes, errors, the page, and how it starts and stops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from hashcade._version import __version__
from hashcade.serve import routes_items, routes_search, routes_status
from hashcade.serve.middleware import Middleware, problem
from hashcade.serve.responses import check_parameters
from hashcade.serve.service import Service
from hashcade.serve.settings import ServeSettings

_STATIC = Path(__file__).parent / "static"
# Only these can be asked for: a path is looked up in this list, never in the file system.
PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/api": ("api.html", "text/html; charset=utf-8"),
    "/static/style.css": ("style.css", "text/css; charset=utf-8"),
    "/static/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/static/dom.js": ("dom.js", "text/javascript; charset=utf-8"),
    "/static/search.js": ("search.js", "text/javascript; charset=utf-8"),
    "/static/tree.js": ("tree.js", "text/javascript; charset=utf-8"),
    "/static/api.js": ("api.js", "text/javascript; charset=utf-8"),
    "/static/icon.svg": ("icon.svg", "image/svg+xml"),
}


def create_app(settings: ServeSettings) -> FastAPI:
    """Make the ASGI application. The table is opened here, and closed when it shuts down."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="hashcade",
        version=__version__,
        description="Similarity search in a learned hash table.",
        lifespan=lifespan,
        docs_url=None,  # the usual pages load scripts from elsewhere; ours is at /api
        redoc_url=None,
    )
    app.state.service = service
    for module in (routes_search, routes_items, routes_status):
        app.include_router(module.router, dependencies=[Depends(check_parameters)])
    for path, (name, media_type) in PAGES.items():
        _add_page(app, path, name, media_type)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _unexpected)
    app.add_middleware(Middleware, settings=settings, metrics=service.metrics)
    if settings.token is not None:
        _describe_token(app)
    return app


def _add_page(app: FastAPI, path: str, name: str, media_type: str) -> None:
    content = (_STATIC / name).read_bytes()
    headers = {"Cache-Control": "no-cache"}

    async def page() -> Response:
        return Response(content, media_type=media_type, headers=headers)

    app.add_api_route(path, page, include_in_schema=False, methods=["GET"])


def _describe_token(app: FastAPI) -> None:
    original = app.openapi

    def openapi() -> dict[str, Any]:
        described = original()
        schemes = described.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["token"] = {"type": "http", "scheme": "bearer"}
        described["security"] = [{"token": []}]
        described["paths"]["/health"]["get"]["security"] = []
        return described

    app.openapi = openapi  # type: ignore[method-assign]


# -- errors: one line each, and nothing of what was sent -------------------------------------------


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, str(error.detail), error.headers)


async def _validation_error(request: Request, error: Exception) -> Response:
    """Name the first place and what is wrong with it; the value itself is not repeated."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    more = len(error.errors()) - 1
    text = f"{place or 'the body'}: {first['msg']}" + (f" (and {more} more)" if more else "")
    return problem(422, text)


async def _unexpected(request: Request, error: Exception) -> Response:
    return problem(500, "internal error; see the log of the service")
