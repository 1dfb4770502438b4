"""Routes to look at items and at the tree, and to change the index."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from hashcade.errors import DataError
from hashcade.index._index import HashIndex
from hashcade.serve import _schemas as schemas
from hashcade.serve._answers import (
    IMAGE_TYPES,
    as_json,
    binary_body,
    deadline_of,
    problems,
    raw_body,
    service_of,
    within,
)
from hashcade.serve._routes_search import ItemId, _labels, text_keys
from hashcade.serve._schemas import InDigits
from hashcade.serve._service import Encoded, Service, errors_as_answers, found
from hashcade.serve._wire import MEDIA_TYPE

router = APIRouter(prefix="/v1", tags=["items"])
_SHOWN = 256  # items of a node's children together
Start = Annotated[int, InDigits, Query(ge=0, le=2**62)]
Limit = Annotated[int, InDigits, Query(ge=1, le=1000)]
Seed = Annotated[int, InDigits, Query(ge=0, le=2**63 - 1)]
Slots = Annotated[str, Query(pattern=r"^([0-9]{1,9}(\.[0-9]{1,9}){0,62})?$", max_length=640)]


# -- looking ---------------------------------------------------------------------------------------


@router.get("/items", responses={200: {"model": schemas.Sample}, **problems()})
async def sample_items(request: Request, limit: Limit = 24, seed: Seed = 0) -> Response:
    """Some items, drawn at random: the same ones for the same seed."""
    service = service_of(request)
    index = service.index

    def work() -> Response:
        with errors_as_answers():
            ids = index.sample(limit, random_state=seed).tolist() if len(index) else []
            labels = [index.item(item)["label"] for item in ids]
        return as_json({"items": service.briefs(ids, labels), "n_items": len(index)})

    return await service.search_thread(deadline_of(request), work)


@router.get("/items/{item_id}", responses={200: {"model": schemas.Item}, **problems(404)})
async def get_item(request: Request, item_id: ItemId, vector: bool = False) -> Response:
    """What is known of one item; with ``vector`` its vector as well."""
    service = service_of(request)
    index = service.index

    def work() -> Response:
        item = found(index, item_id)
        (brief,) = service.briefs([item_id], [item["label"]])
        buckets = item["bucket_ids"]
        paths = index.shape.paths(buckets).tolist()
        numbers = item["vector"].tolist() if vector else None
        return as_json({**brief, "bucket_ids": buckets.tolist(), "paths": paths, "vector": numbers})

    return await service.search_thread(deadline_of(request), work)


@router.get("/tree", responses={200: {"model": schemas.Node}, **problems()})
async def tree_node(request: Request, path: Slots = "") -> Response:
    """A node of the tree and its children. The path: slots with points between; empty: the root."""
    service = service_of(request)
    index = service.index
    slots = [int(slot) for slot in path.split(".")] if path else []

    def work() -> Response:
        with errors_as_answers():
            node = index.node(slots)
            depth = index.shape.depth
            node["bucket"] = None
            if len(slots) == depth:
                node["bucket"] = int(index.shape.bucket_ids(slots))
            node["classes"] = text_keys(node["classes"])
            n_shown = max(4, min(24, _SHOWN // max(len(node["children"]), 1)))
            for child in node["children"]:
                child["classes"] = text_keys(child["classes"])
                child["items"] = _some_below(service, index, [*slots, child["slot"]], n_shown)
        return as_json(node)

    return await service.search_thread(deadline_of(request), work)


def _some_below(
    service: Service, index: HashIndex, path: list[int], n_shown: int
) -> list[dict[str, Any]]:
    """The first items of the largest buckets below a node, as many of each."""
    snapshot = index._snapshot
    span = index.shape.width ** (index.shape.depth - len(path))
    prefix = 0
    for slot in path:
        prefix = prefix * index.shape.width + slot
    buckets = snapshot.directory.buckets
    low, high = np.searchsorted(buckets, [prefix * span, prefix * span + span - 1])
    high += int(high < len(buckets) and buckets[high] == prefix * span + span - 1)
    live = snapshot.directory.live[low:high]
    largest = low + np.argsort(-live, kind="stable")[:n_shown]
    share = -(-n_shown // max(len(largest), 1))
    briefs: list[dict[str, Any]] = []
    for number in largest.tolist():
        ids, labels = index.bucket(int(buckets[number]), limit=share)
        briefs += service.briefs(ids.tolist(), _labels(labels, len(ids)))
    return briefs[:n_shown]


@router.get("/buckets/{bucket_id}", responses={200: {"model": schemas.Bucket}, **problems()})
async def bucket_items(
    request: Request, bucket_id: ItemId, start: Start = 0, limit: Limit = 60
) -> Response:
    """A part of the items of a bucket, in the order in which they came."""
    service = service_of(request)
    index = service.index

    def work() -> Response:
        with errors_as_answers():
            path = index.shape.paths(bucket_id).tolist()
            ids, labels = index.bucket(bucket_id, start=start, limit=limit)
            size = index.node(path)["n_entries"]
            items = service.briefs(ids.tolist(), _labels(labels, len(ids)))
        return as_json({"bucket": bucket_id, "path": path, "size": size, "items": items})

    return await service.search_thread(deadline_of(request), work)


@router.get(
    "/pictures/{item_id}",
    response_class=Response,
    responses={
        200: {
            "description": "A small picture of the item",
            "content": {
                kind: {"schema": {"type": "string", "format": "binary"}}
                for kind in ("image/png", "image/jpeg")
            },
        },
        **problems(404),
    },
)
async def picture(request: Request, item_id: ItemId) -> Response:
    """The picture of an item."""
    service = service_of(request)
    pictures = service.pictures
    if pictures is None:
        raise HTTPException(404, "there are no pictures")
    try:
        made = await service.search_thread(deadline_of(request), partial(pictures.get, item_id))
    except DataError as error:
        raise HTTPException(404, str(error)) from None
    if made is None:
        raise HTTPException(404, f"there is no picture of item {item_id}")
    headers = {"Cache-Control": "private, max-age=300"}
    return Response(made[0], media_type=made[1], headers=headers)


# -- changing --------------------------------------------------------------------------------------


@router.post("/items", responses={200: {"model": schemas.Changed}, **problems()})
async def add_items(request: Request, body: schemas.AddRequest) -> Response:
    """Add items. The answer comes when they are on disk."""
    service, deadline = service_of(request), deadline_of(request)
    within("the number of items", len(body.vectors), "max_batch", service.settings.max_batch)
    if body.bucket_ids is not None:
        add = partial(service.live.add, body.bucket_ids, body.vectors, body.ids, body.labels)
    else:
        encode = partial(service.encode_items, body.vectors)
        add = _addition(await service.slow_thread(deadline, encode), body.ids, body.labels)
    return _changed(service, await service.change(deadline, add))


def _addition(encoded: Encoded, ids: Any, labels: Any) -> Any:
    """Add what was encoded to the index that the model belongs to, and to no other."""
    return partial(
        encoded.live.add, encoded.bucket_ids, encoded.vectors, ids, labels, epoch=encoded.epoch
    )


@router.post(
    "/items/image",
    responses={200: {"model": schemas.Changed}, **problems(409, 415)},
    openapi_extra=binary_body(*IMAGE_TYPES, MEDIA_TYPE),
)
async def add_image(
    request: Request,
    id: Annotated[schemas.Id, InDigits] | None = None,
    label: Annotated[schemas.Label, InDigits] | None = None,
) -> Response:
    """Add an item by its image: the body is the image file, of which only the vector is kept."""
    service, deadline = service_of(request), deadline_of(request)
    service.image_encoder()
    body = await raw_body(request, *IMAGE_TYPES, MEDIA_TYPE)
    encoded = await service.slow_thread(deadline, partial(service.encode_image, body))
    ids = None if id is None else [id]
    add = _addition(encoded, ids, None if label is None else [label])
    return _changed(service, await service.change(deadline, add))


@router.post("/items/remove", responses={200: {"model": schemas.Changed}, **problems()})
async def remove_items(request: Request, body: schemas.RemoveRequest) -> Response:
    """Remove items, all of which must be there. The answer comes when this is on disk."""
    service, deadline = service_of(request), deadline_of(request)
    within("the number of items", len(body.ids), "max_batch", service.settings.max_batch)
    remove = partial(service.live.remove, body.ids)
    return _changed(service, await service.change(deadline, remove))


@router.delete("/items/{item_id}", responses={200: {"model": schemas.Changed}, **problems(404)})
async def remove_item(request: Request, item_id: ItemId) -> Response:
    """Remove one item. The answer comes when this is on disk."""
    service, deadline = service_of(request), deadline_of(request)
    if item_id not in service.index:
        raise HTTPException(404, f"id {item_id} not in the index")
    remove = partial(service.live.remove, [item_id])
    return _changed(service, await service.change(deadline, remove))


def _changed(service: Service, ids: Any) -> Response:
    return as_json({"ids": ids.tolist(), "n_items": len(service.index)})
