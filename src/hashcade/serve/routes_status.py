"""Routes for those who run the service."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from hashcade._version import __version__
from hashcade.errors import HashcadeError
from hashcade.serve import schemas
from hashcade.serve.responses import Call, as_json, describe
from hashcade.serve.service import without_paths
from hashcade.store import DurableIndex

router = APIRouter(tags=["status"])
_METRICS = {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}
_READY = describe(schemas.Readiness)
_READY["responses"][503] = {"model": schemas.Readiness, "description": "Not ready"}


@router.get("/health", **describe(schemas.Health))
async def health(request: Request) -> Response:
    """Whether the process answers at all. Needs no token."""
    Call(request)  # refuses parameters
    return as_json({"status": "ok"})


@router.get("/ready", **_READY)
async def ready(request: Request) -> Response:
    """Whether searches are answered, changes are taken, and the last save of the index worked.

    Changes are on disk also while saves fail: the log of them grows. For a table in a cluster also
    which generation is searched, and how much of the cluster answers.
    """
    call = Call(request)
    durable = call.service.durable
    status = {
        "writes": without_paths(durable.failure or "ok"),
        "saves": without_paths(durable.save_failure or "ok"),
    }
    healthy = all(text == "ok" for text in status.values())
    if call.service.settings.read_only:
        status = dict.fromkeys(status, "read only")
    cluster: dict[str, Any] = {}
    if not isinstance(durable, DurableIndex):
        cluster = await call.search_thread(durable.readiness)
        healthy = cluster["slots_reachable"] == 1
    answer = as_json({"status": "ready" if healthy else "not ready", **status, **cluster})
    answer.status_code = 200 if healthy else 503
    return answer


@router.get("/metrics", **describe(_METRICS))
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
    call = Call(request)
    return Response(call.service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/stats", **describe(schemas.Stats))
async def stats(request: Request, classes: bool = True) -> Response:
    """The table and the service in numbers, on request without those of each class."""
    call = Call(request)
    service, settings = call.service, call.service.settings
    now = service.now()
    model = None if now.table.hasher is None else now.table.hasher.config_
    shape = now.table.index.shape
    names = [name for name in vars(settings) if name.startswith("max_")]
    limits = {name: getattr(settings, name) for name in (*names, "deadline")}

    def work() -> Response:
        described = now.table.index.stats()
        by_code = described.pop("classes", None)
        if by_code is not None and classes:
            label = now.table.catalog.label
            described["classes"] = [{"label": label(code), **x} for code, x in by_code.items()]
        return as_json(
            {
                "index": described,
                "n_classes": None if by_code is None else len(by_code),
                "shape": {"width": shape.width, "depth": shape.depth, "sparsity": shape.sparsity},
                "metric": now.table.metric,
                "ids": now.table.catalog.id_kind,
                "limits": limits,
                "model": model and ("images" if model.image_size else "embeddings"),
                "item_shape": model and list(model.item_shape),
                "features": model and model.features and model.features.name,
                "pictures": now.pictures is not None,
                "read_only": settings.read_only,
                "unsaved_changes": service.durable.unsaved,
                "version": __version__,
            }
        )

    return await call.search_thread(work)


@router.post("/v1/save", **describe(schemas.Done))
async def save(request: Request) -> Response:
    """Save the index now. Changes are on disk without this too."""
    call = Call(request)
    done = await call.slow_thread(call.service.durable.fold, finish=True)
    return as_json({"done": done, "n_items": len(call.service.durable.index)})


@router.post("/v1/reload", **describe(schemas.Done, 409))
async def reload(request: Request) -> Response:
    """Serve the table that stands at the path now. Searches continue meanwhile."""
    call = Call(request)

    def work() -> bool:
        try:
            return call.service.reload()
        except HashcadeError as error:
            raise HTTPException(409, without_paths(str(error))) from None

    done = await call.slow_thread(work, finish=True)
    return as_json({"done": done, "n_items": len(call.service.durable.index)})
