"""Pieces that the routes share: answers as JSON, documented errors, bodies and limits."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from hashcade.serve.middleware import DEADLINE
from hashcade.serve.schemas import Problem
from hashcade.serve.service import Service

IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff")
_TEXTS = {
    400: "The request cannot be read",
    401: "The token is missing or wrong",
    403: "Not allowed",
    404: "Not found",
    408: "The body did not arrive in time",
    409: "Not possible with this table",
    413: "The body is too large",
    415: "The Content-Type is not supported",
    422: "The request does not fit",
    429: "Too many requests at once; try again after Retry-After",
    503: "The table cannot be used now",
    504: "The deadline has passed",
}
_ALWAYS = (400, 401, 403, 408, 413, 422, 429, 503, 504)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of a route: those that every route has, and its own."""
    return {
        status: {"description": _TEXTS[status], "model": Problem}
        for status in sorted({*_ALWAYS, *statuses})
    }


def as_json(value: object) -> Response:
    """Answer with a value that has the documented form.

    What is beyond the range of float32 becomes null: JSON has no infinity.
    """
    return Response(to_json(value, inf_nan_mode="null"), media_type="application/json")


def service_of(request: Request) -> Service:
    """Return the service behind a request."""
    service: Service = request.app.state.service
    return service


def deadline_of(request: Request) -> float:
    """Return when the request is too late, on the loop's clock."""
    deadline: float = request.scope[DEADLINE]
    return deadline


async def check_parameters(request: Request) -> None:
    """Answer 422 if the address has a parameter that the route does not have."""
    if not request.query_params:
        return
    routes = request.app.openapi()["paths"]
    described = routes[request.scope["route"].path][request.method.lower()]
    allowed = {part["name"] for part in described.get("parameters", ()) if part["in"] == "query"}
    unknown = [name for name in request.query_params if name not in allowed]
    if unknown:
        shown = ", ".join(sorted(allowed)) or "none"
        raise HTTPException(422, f"Unknown parameter {unknown[0][:50]!r} (allowed: {shown})")


async def raw_body(request: Request, *types: str) -> bytes:
    """Return the body, if it says that it is of one of these types."""
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent not in types:
        raise HTTPException(415, f"the Content-Type is {sent!r}, must be {' or '.join(types)}")
    body = await request.body()
    if not body:
        raise HTTPException(422, "the body is empty")
    return body


def binary_body(*types: str) -> dict[str, Any]:
    """Describe a body of plain bytes."""
    schema = {"type": "string", "format": "binary", "minLength": 1}
    return {
        "requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in types}}
    }


def check_limit(name: str, value: int | None, limit_name: str, limit: int) -> None:
    """Answer 422 if a number is above its limit."""
    if value is not None and value > limit:
        raise HTTPException(422, f"{name}={value} must be <= {limit_name}={limit}")
