"""Routes that search: by vector, by image, by item."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from hashcade.index._index import HashIndex
from hashcade.index._search import SearchResult
from hashcade.serve import _wire as wire
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
from hashcade.serve._schemas import (
    BinaryOptions,
    ExplainRequest,
    Explanation,
    InDigits,
    Options,
    SearchAnswer,
    SearchRequest,
)
from hashcade.serve._service import Service, errors_as_answers, found, where_to_look

router = APIRouter(prefix="/v1", tags=["search"])
ItemId = Annotated[int, InDigits, Path(ge=0, le=2**63 - 1)]
SearchOptions = Annotated[Options, Query()]
BINARY_PATH = "/v1/search/binary"
_SHOWN = 12  # items of a bucket in an explanation


def _limited(service: Service, request: Any, n_queries: int) -> None:
    """Answer 422 if a search asks for more than the limits allow."""
    settings = service.settings
    within("the number of queries", n_queries, "max_batch", settings.max_batch)
    within("n_neighbors", request.n_neighbors, "max_neighbors", settings.max_neighbors)
    within("n_probe", request.n_probe, "max_probe", settings.max_probe)
    if isinstance(request, SearchRequest) and request.filter_ids is not None:
        given = len(request.filter_ids)
        within("the number of filter_ids", given, "max_filter", settings.max_filter)


def _options(request: Any) -> dict[str, Any]:
    names = ("n_neighbors", "n_probe", "max_candidates", "fill", "metric")
    return {name: getattr(request, name) for name in names}


def as_scores(scores: Any) -> npt.NDArray[np.float32]:
    """Return scores as a hasher gives them; the kernels are compiled for this one kind."""
    with errors_as_answers(), np.errstate(over="ignore"):
        return np.array(scores, dtype=np.float32)


def _search(index: HashIndex, vectors: Any, **options: Any) -> SearchResult:
    with errors_as_answers():
        return index.search(vectors, **options)


def _listed(service: Service, index: HashIndex, result: SearchResult) -> Response:
    """Answer in JSON: without the padding, which JSON has no number for."""
    service.metrics.searched(len(result.ids), result.candidates)
    found = (result.ids >= 0).sum(axis=1).tolist()
    answer = {
        "ids": [row[:n] for row, n in zip(result.ids.tolist(), found, strict=True)],
        "distances": [row[:n] for row, n in zip(result.distances.tolist(), found, strict=True)],
        "candidates": result.candidates.tolist(),
        "truncated": result.truncated.tolist(),
        "n_items": len(index),
    }
    return as_json(answer)


# -- search ----------------------------------------------------------------------------------------


@router.post("/search", responses={200: {"model": SearchAnswer}, **problems()})
async def search(request: Request, body: SearchRequest) -> Response:
    """Find the nearest items of each query."""
    service, deadline = service_of(request), deadline_of(request)
    index = service.index
    _limited(service, body, len(body.vectors))
    vectors: Any = body.vectors
    scores: Any = None if body.scores is None else as_scores(body.scores)
    where: dict[str, Any] = {"bucket_ids": body.bucket_ids, "scores": scores}
    if body.bucket_ids is None and scores is None:
        encode = partial(service.encode_items, body.vectors)
        encoded = await service.slow_thread(deadline, encode)
        index, vectors, where = encoded.table, encoded.vectors, encoded.where(body.n_probe)
    own: Any = False if body.exclude_ids is None else np.array(body.exclude_ids, dtype=np.int64)
    work = partial(
        _search, index, vectors, **where,
        filter_ids=body.filter_ids, exclude_self=own, **_options(body),
    )  # fmt: skip
    return _listed(service, index, await service.search_thread(deadline, work))


@router.post(
    BINARY_PATH.removeprefix("/v1"),
    response_class=Response,
    responses={
        200: {
            "description": "ids int64[q, n_neighbors], distances float32[q, n_neighbors],"
            " candidates int64[q], truncated uint8[q]; little-endian, without gaps",
            "content": {wire.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        },
        **problems(409, 415),
    },
    openapi_extra=binary_body(wire.MEDIA_TYPE),
)
async def search_binary(request: Request, options: Annotated[BinaryOptions, Query()]) -> Response:
    """Find the nearest items of each query, with arrays instead of JSON.

    The body is vectors float32[n_queries, dim], followed by bucket ids int64[n_queries, p] or
    scores float32[n_queries, depth, width], as ``where`` says; little-endian, without gaps.
    """
    body = await raw_body(request, wire.MEDIA_TYPE)
    data = await search_arrays(service_of(request), deadline_of(request), options, body)
    return Response(data, media_type=wire.MEDIA_TYPE)


async def search_arrays(
    service: Service, deadline: float, options: BinaryOptions, body: bytes
) -> bytes:
    """Search with plain arrays in and out."""
    index = service.index
    _limited(service, options, options.n_queries)
    encoder = service.encoder
    by_model = options.where == "model"
    if by_model and (encoder is None or encoder.images):
        raise HTTPException(409, "there is no model that takes embeddings")
    dim = encoder.item_shape[0] if by_model and encoder is not None else index.dim
    with errors_as_answers():
        vectors, buckets, scores = wire.read_query(
            body, options.n_queries, options.where, dim, index.shape
        )
    where: dict[str, Any] = {"bucket_ids": buckets, "scores": scores}
    if by_model:
        encode = partial(service.encode_items, vectors)
        encoded = await service.slow_thread(deadline, encode)
        index, vectors, where = encoded.table, encoded.vectors, encoded.where(options.n_probe)
    work = partial(_search, index, vectors, **where, **_options(options))
    per_query = options.n_probe or (index.shape.sparsity if buckets is None else buckets.shape[1])
    if service.is_short(index, options.n_queries * per_query):
        result = work()
    else:
        result = await service.search_thread(deadline, work)
    service.metrics.searched(len(result.ids), result.candidates)
    return wire.write_result(result)


@router.post(
    "/search/image",
    responses={200: {"model": SearchAnswer}, **problems(409, 415)},
    openapi_extra=binary_body(*IMAGE_TYPES, wire.MEDIA_TYPE),
)
async def search_image(request: Request, options: SearchOptions) -> Response:
    """Find the nearest items of an image: the body is the image file."""
    service, deadline = service_of(request), deadline_of(request)
    service.image_encoder()
    _limited(service, options, 1)
    body = await raw_body(request, *IMAGE_TYPES, wire.MEDIA_TYPE)
    encode = partial(service.encode_image, body)
    encoded = await service.slow_thread(deadline, encode)
    where = encoded.where(options.n_probe)
    work = partial(_search, encoded.table, encoded.vectors, **where, **_options(options))
    return _listed(service, encoded.table, await service.search_thread(deadline, work))


@router.get("/search/item/{item_id}", responses={200: {"model": SearchAnswer}, **problems(404)})
async def search_item(request: Request, item_id: ItemId, options: SearchOptions) -> Response:
    """Find the nearest items of an item that is in the index; itself is left out."""
    service, deadline = service_of(request), deadline_of(request)
    _limited(service, options, 1)
    index = service.index
    if options.n_probe is not None:
        raise HTTPException(422, f"n_probe={options.n_probe} needs scores: use explain, or vectors")

    def work() -> SearchResult:
        item = found(index, item_id)
        return _search(
            index, item["vector"], bucket_ids=item["bucket_ids"][None],
            exclude_self=[item_id], **_options(options),
        )  # fmt: skip

    return _listed(service, index, await service.search_thread(deadline, work))


# -- explain ---------------------------------------------------------------------------------------


def _explained(
    service: Service,
    index: HashIndex,
    vector: Any,
    where: dict[str, Any],
    scores: npt.NDArray[Any] | None,
    **options: Any,
) -> Response:
    """Explain a search, with some items of each bucket to look at, and scores if there are any."""
    with errors_as_answers():
        told = index._explain(vector, scores, **where, **options)
        for level, described in enumerate(told["levels"]):
            described["scores"] = None if scores is None else scores[0][level].tolist()
        for bucket in told["buckets"]:
            ids, labels = index.bucket(bucket["bucket"], limit=_SHOWN)
            bucket["items"] = service.briefs(ids.tolist(), _labels(labels, len(ids)))
            bucket["classes"] = text_keys(bucket["classes"])
        briefs = service.briefs(
            [r["id"] for r in told["results"]], [r["label"] for r in told["results"]]
        )
        for result, brief in zip(told["results"], briefs, strict=True):
            result.update(brief)
    service.metrics.searched(1, told["candidates"])
    return as_json(told)


def _labels(labels: npt.NDArray[np.int64] | None, n: int) -> list[Any]:
    return [None] * n if labels is None else labels.tolist()


def text_keys(classes: dict[int, int] | None) -> dict[str, int] | None:
    """Return the counts of labels as JSON has them."""
    return None if classes is None else {str(label): count for label, count in classes.items()}


@router.post("/explain", responses={200: {"model": Explanation}, **problems()})
async def explain(request: Request, body: ExplainRequest) -> Response:
    """Explain the search for one vector: its way through the tree, the buckets, the results."""
    service, deadline = service_of(request), deadline_of(request)
    index = service.index
    _limited(service, body, 1)
    if body.bucket_ids is not None:
        given = len(body.bucket_ids)
        within("the number of bucket_ids", given, "max_probe", service.settings.max_probe)
    vector: Any = body.vector
    scores: Any = None
    if body.scores is not None:
        scores = as_scores([body.scores])
    where: dict[str, Any] = {"bucket_ids": body.bucket_ids, "scores": scores}
    if body.bucket_ids is None and scores is None:
        encode = partial(service.encode_items, [body.vector])
        encoded = await service.slow_thread(deadline, encode)
        index, vector, scores = encoded.table, encoded.vectors, encoded.scores
        where = encoded.where(body.n_probe)
    work = partial(_explained, service, index, vector, where, scores, **_options(body))
    return await service.search_thread(deadline, work)


@router.post(
    "/explain/image",
    responses={200: {"model": Explanation}, **problems(409, 415)},
    openapi_extra=binary_body(*IMAGE_TYPES, wire.MEDIA_TYPE),
)
async def explain_image(request: Request, options: SearchOptions) -> Response:
    """Explain the search for an image: the body is the image file."""
    service, deadline = service_of(request), deadline_of(request)
    service.image_encoder()
    _limited(service, options, 1)
    body = await raw_body(request, *IMAGE_TYPES, wire.MEDIA_TYPE)
    encode = partial(service.encode_image, body)
    encoded = await service.slow_thread(deadline, encode)
    work = partial(
        _explained, service, encoded.table, encoded.vectors, encoded.where(options.n_probe),
        encoded.scores, **_options(options),
    )  # fmt: skip
    return await service.search_thread(deadline, work)


@router.get("/explain/item/{item_id}", responses={200: {"model": Explanation}, **problems(404)})
async def explain_item(request: Request, item_id: ItemId, options: SearchOptions) -> Response:
    """Explain the search for an item that is in the index; itself is left out.

    With scores if the model can be asked about it, else by the buckets that it lies in.
    """
    service, deadline = service_of(request), deadline_of(request)
    _limited(service, options, 1)
    encode = partial(service.encode_item, item_id)
    index, item, scores, by_path = await service.slow_thread(deadline, encode)
    where = where_to_look(by_path, options.n_probe, scores, item["bucket_ids"][None])
    work = partial(
        _explained, service, index, item["vector"], where, scores,
        exclude_self=[item_id], **_options(options),
    )  # fmt: skip
    return await service.search_thread(deadline, work)
