"""The application: routes, errors, the page, and how it starts and stops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from hashcade._version import __version__
from hashcade.serve import routes_items, routes_search, routes_status, schemas
from hashcade.serve.middleware import Middleware, problem
from hashcade.serve.responses import REFERENCE
from hashcade.serve.service import Service
from hashcade.serve.settings import ServeSettings

_STATIC = Path(__file__).parent / "static"
_MEDIA_TYPES = {
    ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml",
}  # fmt: skip
# Only these can be asked for: a path is looked up in this list, never in the file system.
PAGES = {
    "/": "index.html",
    "/api": "api.html",
    **{
        f"/static/{file.name}": file.name
        for file in sorted(_STATIC.iterdir())
        if file.suffix in _MEDIA_TYPES and file.suffix != ".html"
    },
}


def create_app(settings: ServeSettings) -> FastAPI:
    """Make the ASGI application. The table is opened here, and closed when it shuts down."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    modules = (routes_search, routes_items, routes_status)
    app = FastAPI(
        title="hashcade",
        version=__version__,
        description="Similarity search in a learned hash table.",
        lifespan=lifespan,
        docs_url=None,  # the usual pages load scripts from elsewhere; ours is at /api
        redoc_url=None,
        # Nothing is sent to collectors: /metrics is asked. To look for some takes long, too.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        # As they are: a router that is included is looked through twice for each request.
        routes=[route for module in modules for route in module.router.routes],
    )
    app.state.service = service
    for path, name in PAGES.items():
        _add_page(app, path, _STATIC / name)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _unexpected)
    app.add_middleware(Middleware, settings=settings, metrics=service.metrics)
    described = app.openapi()  # made once: what is added here stays
    app.state.parameters = {
        (path, method.upper()): {
            part["name"] for part in operation.get("parameters", ()) if part["in"] == "query"
        }
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
    }
    _, bodies = models_json_schema(schemas.BODIES, ref_template=REFERENCE)
    described["components"]["schemas"] |= bodies["$defs"]
    if settings.token is not None:
        bearer = {"type": "http", "scheme": "bearer"}
        described["components"]["securitySchemes"] = {"token": bearer}
        described["security"] = [{"token": []}]
        described["paths"]["/health"]["get"]["security"] = []
    return app


def _add_page(app: FastAPI, path: str, file: Path) -> None:
    content, media_type = file.read_bytes(), _MEDIA_TYPES[file.suffix]

    async def page() -> Response:
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})

    app.add_api_route(path, page, include_in_schema=False, methods=["GET"])


async def _http_error(request: Request, error: Any) -> Response:
    return problem(error.status_code, str(error.detail), error.headers)


async def _validation_error(request: Request, error: Any) -> Response:
    """Name the first place and what is wrong with it; the value itself is not repeated."""
    first, *others = error.errors()
    place = ".".join(str(part) for part in first["loc"] if part not in ("query", "path"))
    more = f" (and {len(others)} more)" if others else ""
    return problem(422, f"{place}: {first['msg']}{more}")


async def _unexpected(request: Request, error: Exception) -> Response:
    return problem(500, "internal error; see the log of the service")
