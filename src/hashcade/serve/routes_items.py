"""Routes to look at items and at the tree, and to change the table."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from hashcade.errors import DataError
from hashcade.index import Encoded, HashIndex
from hashcade.serve import schemas
from hashcade.serve.responses import IMAGE_BODY, Call, as_json, contents, describe
from hashcade.serve.routes_search import ItemId, class_counts, read_where
from hashcade.serve.schemas import Digits
from hashcade.serve.service import Snapshot
from hashcade.store import Key, NewItems

log = logging.getLogger("hashcade.serve")
router = APIRouter(prefix="/v1", tags=["items"])
_SHOWN = 256  # items of a node's children together
_DESCRIBED = 60  # children that come with items
_CLASSES = 20  # of a node
_PICTURE = {
    "description": "A small picture of the item",
    "content": contents("image/png", "image/jpeg"),
}
_PICTURE_ROUTE = describe(_PICTURE, 404)
_PICTURE_ROUTE["responses"][304] = {"description": "The picture is still the same"}
BucketId = Annotated[int, Digits, Path(ge=0, le=2**63 - 1)]
Start = Annotated[int, Digits, Query(ge=0, le=2**62)]
Limit = Annotated[int, Digits, Query(ge=1, le=1000)]
Seed = Annotated[int, Digits, Query(ge=0, le=2**63 - 1)]
IdempotencyKey = Annotated[
    str | None, Header(min_length=1, max_length=200, pattern="^[!-~]+$")
]  # fmt: skip
Slots = Annotated[str, Query(pattern=r"^([0-9]{1,9}(\.[0-9]{1,9}){0,62})?$", max_length=640)]


@router.get("/items", **describe(schemas.Sample))
async def sample_items(
    request: Request, limit: Limit = 24, seed: Seed = 0, where: schemas.FilterText | None = None
) -> Response:
    """Some items, drawn at random: the same ones for the same seed.

    With a filter in ``where``, as JSON, of those that pass it.
    """
    call = Call(request)
    now, conditions = call.service.now(), read_where(where)
    index = now.table.index

    def work() -> Response:
        if conditions is None:
            n_matching, numbers = len(index), index.sample(limit, random_state=seed)
        else:
            passing = now.table.catalog.filter(conditions, call.cancel).ids
            n_matching = len(passing)
            drawn = np.random.default_rng(seed).permutation(n_matching)[:limit]
            numbers = passing[drawn]
        items = now.briefs(numbers, index.labels_of(numbers))
        return as_json({"items": items, "n_matching": n_matching, "n_items": len(index)})

    return await call.search_thread(work)


@router.get("/classes", **describe(schemas.Classes))
async def find_classes(
    request: Request,
    contains: Annotated[str, Query(max_length=1000)] = "",
    limit: Limit = 20,
) -> Response:
    """Classes whose label contains a text, those that begin with it first.

    Upper and lower case are the same, and ``_`` is a space.
    """
    call = Call(request)

    def plain(text: str) -> str:
        return text.lower().replace("_", " ").strip()

    part, classes = plain(contains), call.service.now().table.catalog.classes

    def work() -> Response:
        places = [(plain(str(label)).find(part), str(label), label) for label in classes]
        matching = sorted((row for row in places if row[0] >= 0), key=lambda row: row[:2])
        labels = [label for _, _, label in matching[:limit]]
        return as_json({"labels": labels, "n_matching": len(matching), "n_classes": len(classes)})

    return await call.search_thread(work)


@router.get("/items/{item_id:id}", **describe(schemas.Item, 404))
async def get_item(request: Request, item_id: ItemId, vector: bool = False) -> Response:
    """One item; with ``vector`` its vector as well."""
    call = Call(request)
    now = call.service.now()

    def work() -> Response:
        item = now.item(item_id)
        buckets = np.asarray(item.bucket_ids)
        paths = now.table.index.shape.paths(buckets).tolist()
        numbers = item.vector.tolist() if vector else None
        more = {"bucket_ids": buckets.tolist(), "paths": paths, "vector": numbers}
        return as_json(now.brief(item.id, item.label, item.name, item.payload) | more)

    return await call.search_thread(work)


@router.get("/tree", **describe(schemas.Node))
async def tree_node(request: Request, path: Slots = "") -> Response:
    """A node of the tree and its children. The path: slots with points between; empty: the root."""
    call = Call(request)
    now = call.service.now()
    slots = [int(slot) for slot in path.split(".")] if path else []

    def work() -> Response:
        index = now.table.index
        described = index.node(slots)
        for part in (described, *described["children"]):  # of a root there may be very many
            codes = part["classes"]
            part["n_classes"] = None if codes is None else len(codes)
            part["classes"] = None if codes is None else dict(islice(codes.items(), _CLASSES))
        node = now.table.with_labels(described)
        at_end = len(slots) == index.shape.depth
        node["bucket"] = int(index.shape.bucket_ids(slots)) if at_end else None
        for part in (node, *node["children"]):
            part["classes"] = class_counts(part["classes"])
        children = sorted(node["children"], key=lambda child: -child["n_entries"])
        limit = max(4, min(24, _SHOWN // max(len(children), 1)))
        below = [_some_below(index, [*slots, c["slot"]], limit) for c in children[:_DESCRIBED]]
        numbers = np.concatenate([*below, np.empty(0, np.int64)])
        briefs = iter(now.briefs(numbers, index.labels_of(numbers)))  # at once: less to look up
        for child in children:
            child["items"] = []
        for child, items in zip(children, below, strict=False):
            child["items"] = list(islice(briefs, len(items)))
        return as_json(node)

    return await call.search_thread(work)


def _some_below(index: HashIndex, path: list[int], limit: int) -> npt.NDArray[np.int64]:
    """The first items of the largest buckets below a node, as many of each."""
    largest = index.largest_buckets(path, limit).tolist()
    share = -(-limit // max(len(largest), 1))
    return np.concatenate([index.bucket(bucket, limit=share)[0] for bucket in largest])[:limit]


@router.get("/buckets/{bucket_id}", **describe(schemas.Bucket))
async def bucket_items(
    request: Request, bucket_id: BucketId, start: Start = 0, limit: Limit = 60
) -> Response:
    """A part of the items of a bucket, in the order in which they were added."""
    call = Call(request)
    now = call.service.now()

    def work() -> Response:
        path = now.table.index.shape.paths(bucket_id).tolist()
        items = now.bucket_briefs(bucket_id, start=start, limit=limit)
        size = now.table.index.node(path)["n_entries"]
        return as_json({"bucket": bucket_id, "path": path, "size": size, "items": items})

    return await call.search_thread(work)


@router.get("/pictures/{item_id:id}", **_PICTURE_ROUTE)
async def picture(
    request: Request, item_id: ItemId, if_none_match: Annotated[str | None, Header()] = None
) -> Response:
    """The picture of an item."""
    call = Call(request)
    now = call.service.now()
    pictures, item = now.pictures, now.id_of(item_id)
    if pictures is None:
        raise HTTPException(404, "there are no pictures")

    def work() -> tuple[bytes, str] | None:
        try:
            return pictures.get(item)
        except DataError as error:
            log.warning("a picture cannot be shown: %s", error)
            raise HTTPException(404, f"the picture of item {item!r} cannot be read") from None

    file = await call.search_thread(work)
    if file is None:
        raise HTTPException(404, f"there is no picture of item {item!r}")
    tag = f'"{hashlib.sha256(file[0]).hexdigest()[:16]}"'
    headers = {"Cache-Control": "private, max-age=300", "ETag": tag}
    if if_none_match == tag:
        return Response(status_code=304, headers=headers)
    return Response(file[0], media_type=file[1], headers=headers)


@router.post("/items", **describe(schemas.Changed, 415, takes=schemas.AddRequest))
async def add_items(request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Add items. The answer comes when they are on disk.

    With an Idempotency-Key the request may be sent again, for a day: what was added before is not
    added twice, and the answer is the same.
    """
    call = Call(request)
    body = await call.json(schemas.AddRequest)
    labels = None if body.labels is None else np.array(body.labels, dtype=object)
    items = NewItems(
        () if body.bucket_ids is None else body.bucket_ids, body.vectors,
        body.ids, labels, body.names, body.payload,
        known=None if body.new_labels else (), replace=body.replace,
    )  # fmt: skip
    if body.bucket_ids is None:
        now, encoded = await call.encode(body.vectors)
        return await _add(call, now, items, encoded, key=idempotency_key)
    return await _add(call, call.service.now(), items, key=idempotency_key)


async def _add(
    call: Call, now: Snapshot, items: NewItems, encoded: Encoded | None = None, *,
    key: str | None,
) -> Response:  # fmt: skip
    """Add items; what was encoded, to the index that the model belongs to, and to no other."""
    epoch = None
    if items.known is not None:
        items = replace(items, known=now.table.known_labels)
    if encoded is not None:
        if items.labels is not None:
            encoded = now.table.placed(encoded, items.labels)
        epoch = now.epoch
        items = replace(items, bucket_ids=encoded.bucket_ids, vectors=encoded.vectors)
    if key is not None:
        known_by = Key(key, await call.digest())
        answer = await call.change(now.durable.add, items, key=known_by, epoch=epoch)
        return as_json({"ids": answer.ids, "n_items": answer.n_items})
    change = await call.change(now.durable.add, items, epoch=epoch)
    return _changed(call, change.numbers.tolist() if items.ids is None else items.ids)


def _changed(call: Call, ids: list[Any]) -> Response:
    return as_json({"ids": ids, "n_items": len(call.service.durable.index)})


@router.post("/items/image", **describe(schemas.Changed, 409, 415, takes=IMAGE_BODY))
async def add_image(
    request: Request,
    id: schemas.TextId | None = None,
    label: Annotated[str, Query(max_length=1000)] | None = None,
    label_number: Annotated[int, Digits, Query(ge=-(2**63), le=2**63 - 1)] | None = None,
    new_labels: bool = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Add an item by its image: the body is the image file, of which only the vector is stored.

    Its label is text (``label``) or a whole number (``label_number``).
    """
    call = Call(request)
    if label is not None and label_number is not None:
        raise HTTPException(422, "label and label_number are both given, must be one of them")
    labels = np.array([label_number if label is None else label], dtype=object)
    now, encoded = await call.encode_image()
    ids, known = None if id is None else [now.id_of(id)], None if new_labels else ()
    items = NewItems((), (), ids, labels, known=known)
    return await _add(call, now, items, encoded, key=idempotency_key)


@router.post("/items/remove", **describe(schemas.Changed, 415, takes=schemas.RemoveRequest))
async def remove_items(request: Request) -> Response:
    """Remove items, by their ids or by a filter. The answer comes when this is on disk."""
    call = Call(request)
    body = await call.json(schemas.RemoveRequest)
    call.check_limit("the number of items", len(body.ids or ()), "max_batch")
    change = await call.change(call.service.durable.remove, body.ids, where=body.where)
    return _changed(call, body.ids or change.ids.tolist())


@router.delete("/items/{item_id:id}", **describe(schemas.Changed, 404))
async def remove_item(request: Request, item_id: ItemId) -> Response:
    """Remove one item. The answer comes when this is on disk."""
    call = Call(request)
    now = call.service.now()
    item = now.id_of(item_id)
    if item not in now.table:
        raise HTTPException(404, f"id {item!r} not in the table")
    await call.change(now.durable.remove, [item])
    return _changed(call, [item])
