"""Routes that search and explain: by vector, by image, by item."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from hashcade.index import Encoded
from hashcade.serve import binary_format, schemas
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
from hashcade.serve.service import Snapshot, briefs, bucket_briefs, errors_as_answers
from hashcade.table import Matches

router = APIRouter(prefix="/v1", tags=["search"])
ItemId = Annotated[int, schemas.Digits, Path(ge=0, le=2**63 - 1)]
SearchOptions = Annotated[schemas.Options, Query()]
_SHOWN = 12  # items of a bucket in an explanation


# -- what all of them share ------------------------------------------------------------------------


def _check_limits(request: Request, asked: Any, n_queries: int) -> None:
    """Answer 422 if a search asks for more than the limits allow."""
    settings = service_of(request).settings
    check_limit("the number of queries", n_queries, "max_batch", settings.max_batch)
    check_limit("n_neighbors", asked.n_neighbors, "max_neighbors", settings.max_neighbors)
    check_limit("n_probe", asked.n_probe, "max_probe", settings.max_probe)
    for name, limit in (("filter_ids", "max_filter"), ("bucket_ids", "max_probe")):
        values = getattr(asked, name, None) or ()
        n_values = max(map(len, values)) if values and isinstance(values[0], list) else len(values)
        check_limit(f"the number of {name}", n_values, limit, getattr(settings, limit))


def _options(request: Any) -> dict[str, Any]:
    names = ("n_neighbors", "n_probe", "max_candidates", "fill")
    return {name: getattr(request, name) for name in names}


async def _encoded(
    request: Request, vectors: Any, bucket_ids: Any, scores: Any
) -> tuple[Snapshot, Encoded]:
    """Queries that say themselves where to look, or what the model makes of them."""
    service = service_of(request)
    if bucket_ids is None and scores is None:
        encode = partial(service.encode_items, vectors)
        return await service.slow_thread(deadline_of(request), encode)
    if bucket_ids is not None and scores is not None:
        raise HTTPException(422, "bucket_ids and scores are both given, must be one of them")
    with errors_as_answers(), np.errstate(over="ignore"):
        queries = np.asarray(vectors, dtype=np.float32)
        slots = None if scores is None else np.asarray(scores, dtype=np.float32)
    return service.now(), Encoded(queries, bucket_ids, slots, by_path=slots is not None)


async def _search(
    request: Request, now: Snapshot, encoded: Encoded, options: Any, **more: Any
) -> Matches:
    service = service_of(request)

    def work() -> Matches:
        with errors_as_answers():
            return now.table.search(encoded, **_options(options), **more)

    matches = await service.search_thread(deadline_of(request), work)
    service.metrics.searched(len(matches), int(matches.candidates.sum()))
    return matches


def _listed(now: Snapshot, matches: Matches) -> Response:
    """Answer in JSON: without the padding, which JSON has no number for."""
    ends = (matches.ids >= 0).sum(axis=1).tolist()

    def rows(values: npt.NDArray[Any]) -> list[list[Any]]:
        return [row[:end] for row, end in zip(values.tolist(), ends, strict=True)]

    names = ("ids", "distances", "labels", "names")
    return as_json(
        {
            **{name: rows(getattr(matches, name)) for name in names},
            "candidates": matches.candidates.tolist(),
            "truncated": matches.truncated.tolist(),
            "n_items": len(now.table),
        }
    )


# -- search ----------------------------------------------------------------------------------------


@router.post("/search", responses={200: {"model": schemas.SearchAnswer}, **problems()})
async def search(request: Request, body: schemas.SearchRequest) -> Response:
    """Find the nearest items of each query."""
    _check_limits(request, body, len(body.vectors))
    now, encoded = await _encoded(request, body.vectors, body.bucket_ids, body.scores)
    exclude = False if body.exclude_ids is None else np.array(body.exclude_ids, dtype=np.int64)
    more = {"filter_ids": body.filter_ids, "exclude_self": exclude}
    return _listed(now, await _search(request, now, encoded, body, **more))


@router.post(
    "/search/binary",
    response_class=Response,
    responses={
        200: {
            "description": "ids int64[q, n_neighbors], distances float32[q, n_neighbors],"
            " candidates int64[q], truncated uint8[q], little-endian, without gaps; then JSON with"
            " labels and names",
            "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        },
        **problems(409, 415),
    },
    openapi_extra=binary_body(MEDIA_TYPE),
)
async def search_binary(
    request: Request, options: Annotated[schemas.BinaryOptions, Query()]
) -> Response:
    """Find the nearest items of each query, with arrays instead of JSON.

    The body is vectors float32[n_queries, dim], followed by bucket ids int64[n_queries, p] or
    scores float32[n_queries, depth, width], as ``where`` says; little-endian, without gaps.
    """
    _check_limits(request, options, options.n_queries)
    body = await raw_body(request, MEDIA_TYPE)
    table = service_of(request).now().table
    dim = table.index.dim
    if options.where == "model":
        if table.hasher is None or table.hasher.config_.takes_images:
            raise HTTPException(409, "there is no model that takes embeddings")
        dim = table.hasher.config_.item_shape[0]
    with errors_as_answers():
        arrays = binary_format.read_query(
            body, options.n_queries, options.where, dim, table.index.shape
        )
    now, encoded = await _encoded(request, *arrays)
    matches = await _search(request, now, encoded, options)
    return Response(binary_format.write_matches(matches), media_type=MEDIA_TYPE)


@router.post(
    "/search/image",
    responses={200: {"model": schemas.SearchAnswer}, **problems(409, 415)},
    openapi_extra=binary_body(*IMAGE_TYPES, MEDIA_TYPE),
)
async def search_image(request: Request, options: SearchOptions) -> Response:
    """Find the nearest items of an image: the body is the image file."""
    now, encoded = await _encoded_image(request, options)
    return _listed(now, await _search(request, now, encoded, options))


async def _encoded_image(request: Request, options: schemas.Options) -> tuple[Snapshot, Encoded]:
    service = service_of(request)
    service.image_size(service.now())  # refused before the body is read
    _check_limits(request, options, 1)
    body = await raw_body(request, *IMAGE_TYPES, MEDIA_TYPE)
    return await service.slow_thread(deadline_of(request), partial(service.encode_image, body))


@router.get(
    "/search/item/{item_id}", responses={200: {"model": schemas.SearchAnswer}, **problems(404)}
)
async def search_item(request: Request, item_id: ItemId, options: SearchOptions) -> Response:
    """Find the nearest items of an item of the table; itself is left out."""
    now, encoded = await _encoded_item(request, item_id, options)
    return _listed(now, await _search(request, now, encoded, options, exclude_self=[item_id]))


async def _encoded_item(
    request: Request, item_id: int, options: schemas.Options
) -> tuple[Snapshot, Encoded]:
    service = service_of(request)
    _check_limits(request, options, 1)
    return await service.slow_thread(deadline_of(request), partial(service.encode_item, item_id))


# -- explain ---------------------------------------------------------------------------------------


async def _explain(
    request: Request, now: Snapshot, encoded: Encoded, options: Any, **more: Any
) -> Response:
    """Explain a search, with some items of each bucket to look at, and scores if there are any."""
    service = service_of(request)
    arguments = {**_options(options), **more, "fill": "path" if options.fill else "none"}

    def work() -> dict[str, Any]:
        with errors_as_answers():
            explained = now.table.explain(encoded, **arguments)
            for level, described in enumerate(explained["levels"]):
                scores = encoded.scores
                described["scores"] = None if scores is None else scores[0][level].tolist()
            for bucket in explained["buckets"]:
                bucket["items"] = bucket_briefs(now, bucket["bucket"], limit=_SHOWN)
                bucket["classes"] = class_counts(bucket["classes"])
            for result in explained["results"]:
                result.update(*briefs(now, [result["id"]], [result["label"]]))
        return explained

    explained = await service.search_thread(deadline_of(request), work)
    service.metrics.searched(1, explained["candidates"])
    return as_json(explained)


def class_counts(classes: dict[Any, int] | None) -> list[dict[str, Any]] | None:
    """Counts of labels in their order: keys of JSON are strings alone."""
    if classes is None:
        return None
    return [{"label": label, "count": count} for label, count in classes.items()]


@router.post("/explain", responses={200: {"model": schemas.Explanation}, **problems()})
async def explain(request: Request, body: schemas.ExplainRequest) -> Response:
    """Explain the search for one vector: its path through the tree, the buckets, the results."""
    _check_limits(request, body, 1)
    buckets = None if body.bucket_ids is None else [body.bucket_ids]
    scores = None if body.scores is None else [body.scores]
    now, encoded = await _encoded(request, [body.vector], buckets, scores)
    return await _explain(request, now, encoded, body)


@router.post(
    "/explain/image",
    responses={200: {"model": schemas.Explanation}, **problems(409, 415)},
    openapi_extra=binary_body(*IMAGE_TYPES, MEDIA_TYPE),
)
async def explain_image(request: Request, options: SearchOptions) -> Response:
    """Explain the search for an image: the body is the image file."""
    return await _explain(request, *await _encoded_image(request, options), options)


@router.get(
    "/explain/item/{item_id}", responses={200: {"model": schemas.Explanation}, **problems(404)}
)
async def explain_item(request: Request, item_id: ItemId, options: SearchOptions) -> Response:
    """Explain the search for an item of the table; itself is left out.

    With scores if the model can be asked about it, else by the buckets that it lies in.
    """
    now, encoded = await _encoded_item(request, item_id, options)
    return await _explain(request, now, encoded, options, exclude_self=[item_id])
