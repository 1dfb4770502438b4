"""Routes to look at items and at the tree, and to change the table."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from hashcade.errors import DataError
from hashcade.index import Encoded
from hashcade.serve import schemas
from hashcade.serve.binary_format import MEDIA_TYPE
from hashcade.serve.responses import (
    IMAGE_TYPES,
    as_json,
    binary_body,
    check_limit,
    deadline_of,
    problems,
    raw_body,
    service_of,
)
from hashcade.serve.routes_search import ItemId, class_counts
from hashcade.serve.schemas import Digits
from hashcade.serve.service import (
    Service,
    Snapshot,
    briefs,
    bucket_briefs,
    errors_as_answers,
    find_item,
)

router = APIRouter(prefix="/v1", tags=["items"])
_SHOWN = 256  # items of a node's children together
Start = Annotated[int, Digits, Query(ge=0, le=2**62)]
Limit = Annotated[int, Digits, Query(ge=1, le=1000)]
Seed = Annotated[int, Digits, Query(ge=0, le=2**63 - 1)]
Slots = Annotated[str, Query(pattern=r"^([0-9]{1,9}(\.[0-9]{1,9}){0,62})?$", max_length=640)]


# -- looking ---------------------------------------------------------------------------------------


@router.get("/items", responses={200: {"model": schemas.Sample}, **problems()})
async def sample_items(request: Request, limit: Limit = 24, seed: Seed = 0) -> Response:
    """Some items, drawn at random: the same ones for the same seed."""
    now = service_of(request).now()
    index, catalog = now.table.index, now.table.catalog

    def work() -> Response:
        with errors_as_answers():
            ids = index.sample(limit, random_state=seed)
            items = briefs(now, ids.tolist(), catalog.labels(index.labels_of(ids)).tolist())
        return as_json({"items": items, "n_items": len(index)})

    return await service_of(request).search_thread(deadline_of(request), work)


@router.get("/items/{item_id}", responses={200: {"model": schemas.Item}, **problems(404)})
async def get_item(request: Request, item_id: ItemId, vector: bool = False) -> Response:
    """One item; with ``vector`` its vector as well."""
    now = service_of(request).now()

    def work() -> Response:
        with errors_as_answers():
            item = find_item(now, item_id)
        (brief,) = briefs(now, [item_id], [item.label])
        buckets = np.asarray(item.bucket_ids)
        paths = now.table.index.shape.paths(buckets).tolist()
        numbers = item.vector.tolist() if vector else None
        return as_json({**brief, "bucket_ids": buckets.tolist(), "paths": paths, "vector": numbers})

    return await service_of(request).search_thread(deadline_of(request), work)


@router.get("/tree", responses={200: {"model": schemas.Node}, **problems()})
async def tree_node(request: Request, path: Slots = "") -> Response:
    """A node of the tree and its children. The path: slots with points between; empty: the root."""
    now = service_of(request).now()
    slots = [int(slot) for slot in path.split(".")] if path else []

    def work() -> Response:
        index = now.table.index
        with errors_as_answers():
            node = now.table.with_labels(index.node(slots))
            at_end = len(slots) == index.shape.depth
            node["bucket"] = int(index.shape.bucket_ids(slots)) if at_end else None
            node["classes"] = class_counts(node["classes"])
            limit = max(4, min(24, _SHOWN // max(len(node["children"]), 1)))
            for child in node["children"]:
                child["classes"] = class_counts(child["classes"])
                child["items"] = _some_below(now, [*slots, child["slot"]], limit)
        return as_json(node)

    return await service_of(request).search_thread(deadline_of(request), work)


def _some_below(now: Snapshot, path: list[int], limit: int) -> list[dict[str, Any]]:
    """The first items of the largest buckets below a node, as many of each."""
    largest = now.table.index.largest_buckets(path, limit).tolist()
    share = -(-limit // max(len(largest), 1))
    return [brief for bucket in largest for brief in bucket_briefs(now, bucket, limit=share)][
        :limit
    ]


@router.get("/buckets/{bucket_id}", responses={200: {"model": schemas.Bucket}, **problems()})
async def bucket_items(
    request: Request, bucket_id: ItemId, start: Start = 0, limit: Limit = 60
) -> Response:
    """A part of the items of a bucket, in the order in which they were added."""
    now = service_of(request).now()

    def work() -> Response:
        index = now.table.index
        with errors_as_answers():
            path = index.shape.paths(bucket_id).tolist()
            items = bucket_briefs(now, bucket_id, start=start, limit=limit)
            size = index.node(path)["n_entries"]
        return as_json({"bucket": bucket_id, "path": path, "size": size, "items": items})

    return await service_of(request).search_thread(deadline_of(request), work)


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
    pictures = service.now().pictures
    if pictures is None:
        raise HTTPException(404, "there are no pictures")

    def work() -> tuple[bytes, str] | None:
        try:
            return pictures.get(item_id)
        except DataError as error:
            raise HTTPException(404, str(error)) from None

    file = await service.search_thread(deadline_of(request), work)
    if file is None:
        raise HTTPException(404, f"there is no picture of item {item_id}")
    headers = {"Cache-Control": "private, max-age=300"}
    return Response(file[0], media_type=file[1], headers=headers)


# -- changing --------------------------------------------------------------------------------------


@router.post("/items", responses={200: {"model": schemas.Changed}, **problems()})
async def add_items(request: Request, body: schemas.AddRequest) -> Response:
    """Add items. The answer comes when they are on disk."""
    service, deadline = service_of(request), deadline_of(request)
    check_limit("the number of items", len(body.vectors), "max_batch", service.settings.max_batch)
    labels = None if body.labels is None else np.array(body.labels, dtype=object)
    if body.bucket_ids is not None:
        add = partial(service.durable.add, body.bucket_ids, body.vectors, body.ids, labels)
        return _changed(service, await service.change(deadline, add))
    encode = partial(service.encode_items, body.vectors)
    encoded = await service.slow_thread(deadline, encode)
    return await _add(service, deadline, *encoded, body.ids, labels)


async def _add(
    service: Service, deadline: float, now: Snapshot, encoded: Encoded, ids: Any, labels: Any
) -> Response:
    """Add what was encoded to the index that the model belongs to, and to no other."""
    add = partial(
        now.durable.add, encoded.bucket_ids, encoded.vectors, ids, labels, epoch=now.epoch
    )
    return _changed(service, await service.change(deadline, add))


@router.post(
    "/items/image",
    responses={200: {"model": schemas.Changed}, **problems(409, 415)},
    openapi_extra=binary_body(*IMAGE_TYPES, MEDIA_TYPE),
)
async def add_image(
    request: Request,
    id: Annotated[schemas.Id, Digits] | None = None,
    label: Annotated[str, Query(max_length=1000)] | None = None,
    label_number: Annotated[int, Digits, Query(ge=-(2**63), le=2**63 - 1)] | None = None,
) -> Response:
    """Add an item by its image: the body is the image file, of which only the vector is stored.

    Its label is text (``label``) or a whole number (``label_number``).
    """
    service, deadline = service_of(request), deadline_of(request)
    service.image_size(service.now())  # refused before the body is read
    if label is not None and label_number is not None:
        raise HTTPException(422, "label and label_number are both given, must be one of them")
    body = await raw_body(request, *IMAGE_TYPES, MEDIA_TYPE)
    encoded = await service.slow_thread(deadline, partial(service.encode_image, body))
    labels = np.array([label_number if label is None else label], dtype=object)
    return await _add(service, deadline, *encoded, None if id is None else [id], labels)


@router.post("/items/remove", responses={200: {"model": schemas.Changed}, **problems()})
async def remove_items(request: Request, body: schemas.RemoveRequest) -> Response:
    """Remove items, all of which must be in the table. The answer comes when this is on disk."""
    service, deadline = service_of(request), deadline_of(request)
    check_limit("the number of items", len(body.ids), "max_batch", service.settings.max_batch)
    remove = partial(service.durable.remove, body.ids)
    return _changed(service, await service.change(deadline, remove))


@router.delete("/items/{item_id}", responses={200: {"model": schemas.Changed}, **problems(404)})
async def remove_item(request: Request, item_id: ItemId) -> Response:
    """Remove one item. The answer comes when this is on disk."""
    service, deadline = service_of(request), deadline_of(request)
    if item_id not in service.durable.index:
        raise HTTPException(404, f"id {item_id} not in the table")
    remove = partial(service.durable.remove, [item_id])
    return _changed(service, await service.change(deadline, remove))


def _changed(service: Service, ids: Any) -> Response:
    return as_json({"ids": ids.tolist(), "n_items": len(service.durable.index)})
