"""Routes for those who run the service."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from hashcade._version import __version__
from hashcade.errors import HashcadeError
from hashcade.serve import schemas
from hashcade.serve.responses import as_json, deadline_of, problems, service_of
from hashcade.serve.service import errors_as_answers

router = APIRouter(tags=["status"])
_LIMITS = (
    "max_body", "max_batch", "max_neighbors", "max_probe", "max_filter", "max_pixels",
    "max_requests", "deadline",
)  # fmt: skip


@router.get("/health", responses={200: {"model": schemas.Health}, **problems()})
async def health() -> Response:
    """Whether the process answers at all. Needs no token."""
    return as_json({"status": "ok"})


@router.get(
    "/ready",
    responses={
        200: {"model": schemas.Readiness},
        **problems(),
        503: {"model": schemas.Readiness, "description": "Not ready"},
    },
)
async def ready(request: Request) -> Response:
    """Whether searches are answered and changes are taken."""
    service = service_of(request)
    failure = service.durable.failure
    writes = "read only" if service.settings.read_only else failure or "ok"
    answer = as_json({"status": "not ready" if failure else "ready", "writes": writes})
    answer.status_code = 503 if failure else 200
    return answer


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **problems(),
    },
)
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/stats", responses={200: {"model": schemas.Stats}, **problems()})
async def stats(request: Request) -> Response:
    """The table and the service in numbers."""
    service = service_of(request)
    now, settings = service.now(), service.settings
    hasher = now.table.hasher
    shape = now.table.index.shape

    def work() -> Response:
        with errors_as_answers():
            described = now.table.stats()
        if "classes" in described:
            described["classes"] = [
                {"label": label, **numbers} for label, numbers in described["classes"].items()
            ]
        kind = None
        if hasher is not None:
            kind = "images" if hasher.config_.takes_images else "embeddings"
        return as_json(
            {
                "index": described,
                "shape": {"width": shape.width, "depth": shape.depth, "sparsity": shape.sparsity},
                "metric": now.table.metric,
                "limits": {name: getattr(settings, name) for name in _LIMITS},
                "model": kind,
                "item_shape": None if hasher is None else list(hasher.config_.item_shape),
                "pictures": now.pictures is not None,
                "read_only": settings.read_only,
                "unsaved_changes": service.durable.unsaved,
                "version": __version__,
            }
        )

    return await service.search_thread(deadline_of(request), work)


@router.post("/v1/save", responses={200: {"model": schemas.Done}, **problems()})
async def save(request: Request) -> Response:
    """Save the index now. Changes are on disk without this too, in the change log."""

    def work() -> bool:
        with errors_as_answers():
            return service_of(request).durable.fold()

    return await _done(request, work)


@router.post("/v1/reload", responses={200: {"model": schemas.Done}, **problems(409)})
async def reload(request: Request) -> Response:
    """Serve the table that stands at the path now. Searches go on meanwhile."""

    def work() -> bool:
        try:
            return service_of(request).reload()
        except HashcadeError as error:
            raise HTTPException(409, str(error)) from None

    return await _done(request, work)


async def _done(request: Request, work: Callable[[], bool]) -> Response:
    service = service_of(request)
    done = await service.slow_thread(deadline_of(request), work, finish=True)
    return as_json({"done": done, "n_items": len(service.durable.index)})
