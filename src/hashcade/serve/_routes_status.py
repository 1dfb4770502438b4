"""Routes for those who run the service."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from hashcade._version import __version__
from hashcade.errors import HashcadeError
from hashcade.serve import _schemas as schemas
from hashcade.serve._answers import as_json, deadline_of, problems, service_of
from hashcade.serve._service import Service, errors_as_answers

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
    failure = service.live.failure
    writes = "read only" if service.settings.read_only else failure or "ok"
    answer = as_json({"status": "not ready" if failure else "ready", "writes": writes})
    answer.status_code = 503 if failure else 200
    return answer


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"description": "Figures", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **problems(),
    },
)
async def metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/stats", responses={200: {"model": schemas.Stats}, **problems()})
async def stats(request: Request) -> Response:
    """The index and the service in numbers."""
    service = service_of(request)
    index, settings = service.index, service.settings

    def work() -> Response:
        with errors_as_answers():
            told = index.stats()
        classes = told.get("classes", {})
        names = {str(label): service.label_name(label) for label in classes}
        if classes:
            told["classes"] = {str(label): figures for label, figures in classes.items()}
        encoder = service.encoder
        shape = index.shape
        return as_json(
            {
                "index": told,
                "shape": {
                    "width": shape.width, "depth": shape.depth, "sparsity": shape.sparsity
                },
                "label_names": names,
                "limits": {name: getattr(settings, name) for name in _LIMITS},
                "model": None if encoder is None else "images" if encoder.images else "embeddings",
                "item_shape": None if encoder is None else list(encoder.item_shape),
                "pictures": service.pictures is not None,
                "read_only": settings.read_only,
                "unsaved_changes": service.live.unsaved,
                "version": __version__,
            }
        )  # fmt: skip

    return await service.search_thread(deadline_of(request), work)


@router.post("/v1/save", responses={200: {"model": schemas.Done}, **problems()})
async def save(request: Request) -> Response:
    """Save the index now. Changes are on disk without this too, in the journal."""
    service = service_of(request)
    work = partial(_folded, service)
    done = await service.slow_thread(deadline_of(request), work, finish=True)
    return as_json({"done": done, "n_items": len(service.index)})


def _folded(service: Service) -> bool:
    with errors_as_answers():
        return service.live.fold()


@router.post("/v1/reload", responses={200: {"model": schemas.Done}, **problems(409)})
async def reload(request: Request) -> Response:
    """Serve the index and the model that stand at their paths now. Searches go on meanwhile."""
    service = service_of(request)
    work = partial(_reloaded, service)
    done = await service.slow_thread(deadline_of(request), work, finish=True)
    return as_json({"done": done, "n_items": len(service.index)})


def _reloaded(service: Service) -> bool:
    try:
        return service.reload()
    except HashcadeError as error:
        raise HTTPException(409, str(error)) from None
