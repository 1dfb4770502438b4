"""Routes that search and explain: by vector, by image, by item."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from pydantic import Field, TypeAdapter
from pydantic_core import to_json
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException

from hashcade.index import Encoded
from hashcade.results import Matches
from hashcade.serve import schemas
from hashcade.serve.binary_format import (
    BUCKET_HEADER,
    MEDIA_TYPE,
    SEQUENCE_HEADER,
    read_query,
    write_matches,
)
from hashcade.serve.responses import (
    IMAGE_BODY,
    Call,
    Route,
    as_json,
    contents,
    describe,
)
from hashcade.serve.service import Snapshot, errors_as_answers
from hashcade.store import DurableIndex

router = APIRouter(prefix="/v1", tags=["search"], route_class=Route)
ItemId = Annotated[str, Path(min_length=1, max_length=1000)]
_SEQUENCE = TypeAdapter(Annotated[int, Field(ge=0, le=2**62), schemas.Digits])
_describe = partial(describe, headers={SEQUENCE_HEADER: _SEQUENCE.json_schema()})
_PROBE, _RESULT = 100, 400  # candidates that take as long as a bucket, and as a result
_LARGE = 2_000_000  # work of a search that others do not wait for: some hundredths of a second
_SHORT_NUMBERS, _SHORT_RESULTS = 1 << 24, 2048  # of a search in the event loop
_OPTIONS = tuple(schemas.Options.model_fields)
_NO_SELECTION = schemas.Selection.model_validate({})
_SHOWN = 12  # items of a bucket in an explanation
_MATCHES = {
    "description": "ids int64[q, n_neighbors], distances float32[q, n_neighbors],"
    " candidates int64[q], truncated uint8[q], exact uint8[q], little-endian, without gaps; then"
    " JSON with labels, names and payload, as far as they are included",
    "content": contents(MEDIA_TYPE),
}


class _AnyText(StringConvertor):
    """An id in an address: with slashes and ends of lines, which other patterns cut off."""

    regex = r"[\s\S]+"


register_url_convertor("id", _AnyText())


async def _see_change(call: Call) -> None:
    """Answer 503 if the change that the caller names has not arrived here yet."""
    sequence = call.header(SEQUENCE_HEADER, _SEQUENCE)
    if sequence is None:
        return
    durable = call.service.durable
    if isinstance(durable, DurableIndex):
        raise HTTPException(422, f"{SEQUENCE_HEADER} is for tables in a cluster")
    if not await call.search_thread(partial(durable.has_seen, sequence)):
        message = f"change {sequence} has not arrived here yet"
        raise HTTPException(503, message, {"Retry-After": "1"})
    call.renew()


async def _begin(
    call: Call,
    options: schemas.Options,
    n_queries: int = 1,
    bucket_ids: npt.NDArray[np.int64] | None = None,
    filter_ids: Sequence[int | str] | None = None,
) -> None:
    """Check the change that must be seen, and the limits of a search: 503 or 422."""
    await _see_change(call)
    call.check_limit("the number of queries", n_queries, "max_batch")
    call.check_limit("n_neighbors", options.n_neighbors, "max_neighbors")
    call.check_limit("n_probe", options.n_probe, "max_probe")
    call.check_limit("the number of filter_ids", len(filter_ids or ()), "max_filter")
    n_buckets = 0 if bucket_ids is None else bucket_ids.shape[-1]
    _check_work(call, options, n_queries, n_buckets or options.n_probe)


def _check_work(call: Call, options: schemas.Options, n_queries: int, n_probe: int) -> None:
    """Answer 422 if a search would take longer than anybody waits, before it begins."""
    candidates = call.now.table.index.expected_candidates(n_probe)
    candidates = min(candidates, options.max_candidates or candidates)
    parts = {
        "n_probe or max_candidates": round(candidates) + _PROBE * n_probe,
        "n_neighbors": _RESULT * options.n_neighbors,
    }
    limit, work = call.service.settings.max_work, n_queries * sum(parts.values())
    call.large = work > _LARGE
    if work > limit:
        queries = "one query" if n_queries == 1 else f"{n_queries:,} queries"
        fewer = "" if n_queries == 1 else ", or send fewer queries at once"
        way = f"lower {max(parts, key=lambda name: parts[name])}{fewer}"
        sums = f"{queries} × ({round(candidates):,} candidates + {_PROBE} × {n_probe:,} buckets"
        sums += f" + {_RESULT} × {options.n_neighbors:,} results) = {work:,}"
        raise HTTPException(422, f"{sums} must be <= max_work={limit:,}: {way}")


async def _encoded(
    call: Call, n_probe: int, vectors: Any, bucket_ids: Any, scores: Any, **filters: Any
) -> tuple[Snapshot, Encoded]:
    """Queries that say themselves where to look, or what the model makes of them."""
    if bucket_ids is None and scores is None:
        return await call.encode(vectors, await _n_ranked(call, n_probe, **filters))
    if bucket_ids is not None and scores is not None:
        raise HTTPException(422, "bucket_ids and scores are both given, must be one of them")
    return call.now, Encoded(vectors, bucket_ids, scores, by_path=scores is not None)


async def _n_ranked(call: Call, n_probe: int, **filters: Any) -> int:
    """How many buckets are to be ranked: a filter may need more than are asked for."""
    if all(part is None for part in filters.values()):
        return n_probe
    table = call.now.table
    return await call.search_thread(partial(table.n_ranked, n_probe, **filters, cancel=call.cancel))


def read_where(text: str | None) -> dict[str, Any] | None:
    """A filter that stands in an address, as JSON; 422 if it is not an object."""
    if text is None:
        return None
    try:
        where = json.loads(text)
    except (ValueError, RecursionError):
        where = None
    if not isinstance(where, dict):
        raise HTTPException(422, 'where must be an object of JSON, such as {"label":"cat"}')
    return where


def _options(options: schemas.Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in _OPTIONS}


def _filters(selection: schemas.Selection) -> dict[str, Any]:
    return {"where": selection.where, "filter_ids": selection.filter_ids}


async def _search(
    call: Call,
    now: Snapshot,
    encoded: Encoded,
    options: schemas.Options,
    answer: Callable[[Matches], Response] | None = None,
    exclude: Sequence[int | str] | None = None,
    **filters: Any,
) -> Response:
    """Search and answer, in JSON unless told otherwise."""

    def work() -> Response:
        without = False if exclude is None else exclude
        matches = now.table.search(
            encoded, **_options(options), **filters, exclude_self=without, cancel=call.cancel
        )
        call.service.metrics.searched(len(matches), int(matches.candidates.sum()))
        response = _listed(now, matches) if answer is None else answer(matches)
        if encoded.bucket_ids is not None and encoded.bucket_ids.size:  # see docs/recipes.md
            response.headers[BUCKET_HEADER] = str(int(encoded.bucket_ids[0, 0]))
        return response

    with errors_as_answers():
        is_short = not any(filters.values()) and _is_short(now, encoded, options)
    response = call.short_work(work) if is_short else None
    return await call.search_thread(work) if response is None else response


def _is_short(now: Snapshot, encoded: Encoded, options: schemas.Options) -> bool:
    """Whether a search takes a few milliseconds at the most, and needs nothing but memory."""
    table = now.table
    if not isinstance(now.durable, DurableIndex) or not table.catalog.is_in_memory:
        return False
    where = encoded.where_to_look(options.n_probe)
    if "scores" in where:
        return False
    n_buckets = where.get("n_probe", where["bucket_ids"].shape[1]) + 1  # one more to fill up
    candidates = table.index.most_candidates(n_buckets) + options.n_neighbors
    return (
        len(encoded) * candidates * table.index.dim <= _SHORT_NUMBERS
        and len(encoded) * options.n_neighbors <= _SHORT_RESULTS
    )


def _listed(
    now: Snapshot, matches: Matches, include: Sequence[str] = ("labels", "names", "payload")
) -> Response:
    """Answer in JSON: without the padding, which JSON has no number for.

    Row by row: to write a million results at once would keep all other threads waiting.
    """
    ends = matches.counts.tolist()

    def rows(values: npt.NDArray[Any]) -> bytes:
        listed = (row[:end].tolist() for row, end in zip(values, ends, strict=True))
        return b"[%s]" % b",".join(to_json(row, inf_nan_mode="null") for row in listed)

    names = ("ids", "distances", *include)
    parts = {name: rows(getattr(matches, name)) for name in names}
    for name in ("candidates", "truncated", "exact"):
        parts[name] = to_json(getattr(matches, name).tolist())
    parts["n_items"] = to_json(len(now.table))
    body = b",".join(b'"%s":%s' % (name.encode(), part) for name, part in parts.items())
    return Response(b"{%s}" % body, media_type="application/json")


@router.post("/search", **_describe(schemas.SearchAnswer, 415, takes=schemas.SearchRequest))
async def search(request: Request) -> Response:
    """Find the nearest items of each query."""
    call = Call(request)
    body = await call.json(schemas.SearchRequest)
    await _begin(call, body, len(body.vectors), body.bucket_ids, body.filter_ids)
    queries, filters = (body.vectors, body.bucket_ids, body.scores), _filters(body)
    now, encoded = await _encoded(call, body.n_probe, *queries, **filters)
    answer = partial(_listed, now, include=body.include)
    return await _search(call, now, encoded, body, answer, body.exclude_ids, **filters)


@router.post(
    "/search/binary",
    **_describe(_MATCHES, 409, 415, takes=[MEDIA_TYPE], query=schemas.BinaryOptions),
)
async def search_binary(request: Request) -> Response:
    """Find the nearest items of each query, with arrays instead of JSON.

    The body is a Selection in JSON of ``json_bytes`` bytes, vectors float32[n_queries, dim], and
    bucket ids int64[n_queries, p] or scores float32[n_queries, depth, width], as ``by`` says;
    little-endian, without gaps.
    """
    call = Call(request)
    options = call.query(schemas.BinaryOptions)
    body = call.body(MEDIA_TYPE)
    if options.json_bytes > len(body):
        most = f"{len(body)}, as the body has"
        raise HTTPException(422, f"json_bytes={options.json_bytes} must be <= {most}")
    selection = _NO_SELECTION
    if options.json_bytes:
        selection = await call.parse(body[: options.json_bytes], schemas.Selection)
    table = call.now.table
    dim = table.index.dim
    if options.by == "model":
        if table.hasher is None or table.hasher.config_.takes_images:
            raise HTTPException(409, "there is no model that takes embeddings")
        dim = table.hasher.config_.item_shape[0]
    with errors_as_answers():
        arrays = read_query(
            memoryview(body)[options.json_bytes :],
            options.n_queries,
            options.by,
            dim,
            table.index.shape,
        )
    await _begin(call, options, options.n_queries, arrays[1], selection.filter_ids)
    filters = _filters(selection)
    now, encoded = await _encoded(call, options.n_probe, *arrays, **filters)

    def answer(matches: Matches) -> Response:
        return Response(write_matches(matches, selection.include), media_type=MEDIA_TYPE)

    return await _search(call, now, encoded, options, answer, selection.exclude_ids, **filters)


@router.post(
    "/search/image",
    **_describe(schemas.SearchAnswer, 409, 415, takes=IMAGE_BODY, query=schemas.ItemOptions),
)
async def search_image(request: Request) -> Response:
    """Find the nearest items of an image: the body is the image file."""
    call = Call(request)
    options = call.query(schemas.ItemOptions)
    await _begin(call, options)
    where = read_where(options.where)
    n_probe = await _n_ranked(call, options.n_probe, where=where)
    return await _search(call, *await call.encode_image(n_probe), options, where=where)


@router.get(
    "/search/item/{item_id:id}", **_describe(schemas.SearchAnswer, 404, query=schemas.ItemOptions)
)
async def search_item(request: Request, item_id: ItemId) -> Response:
    """Find the nearest items of an item of the table; itself is left out."""
    call = Call(request)
    options = call.query(schemas.ItemOptions)
    await _begin(call, options)
    where = read_where(options.where)
    n_probe = await _n_ranked(call, options.n_probe, where=where)
    now, encoded = await call.encode_item(item_id, n_probe)
    return await _search(call, now, encoded, options, exclude=[now.id_of(item_id)], where=where)


async def _explain(
    call: Call, now: Snapshot, encoded: Encoded, options: schemas.Options, **more: Any
) -> Response:
    """Explain a search, with some items of each bucket to look at, and scores if there are any."""
    fill = "path" if options.fill else "none"
    arguments = {**_options(options), **more, "fill": fill, "cancel": call.cancel}

    def work() -> dict[str, Any]:
        explained = now.table.explain(encoded, **arguments)
        for level, described in enumerate(explained["levels"]):
            scores = encoded.scores
            described["scores"] = None if scores is None else scores[0][level].tolist()
        for bucket in explained["buckets"]:
            bucket["items"] = now.bucket_briefs(bucket["bucket"], limit=_SHOWN)
            bucket["classes"] = class_counts(bucket["classes"])
        ids = [result["id"] for result in explained["results"]]
        numbers = np.asarray(now.table.catalog.numbers_of(ids), dtype=np.int64)
        briefs = now.briefs(numbers, now.table.index.labels_of(numbers))
        for result, brief in zip(explained["results"], briefs, strict=True):
            result.update(brief)
        return explained

    explained = await call.search_thread(work)
    call.service.metrics.searched(1, explained["candidates"])
    return as_json(explained)


def class_counts(classes: dict[Any, int] | None) -> list[dict[str, Any]] | None:
    """Counts of labels in their order: keys of JSON are strings alone."""
    if classes is None:
        return None
    return [{"label": label, "count": count} for label, count in classes.items()]


@router.post("/explain", **_describe(schemas.Explanation, 415, takes=schemas.ExplainRequest))
async def explain(request: Request) -> Response:
    """Explain the search for one vector: its path through the tree, the buckets, the results."""
    call = Call(request)
    body = await call.json(schemas.ExplainRequest)
    await _begin(call, body, bucket_ids=body.bucket_ids)
    buckets = None if body.bucket_ids is None else body.bucket_ids[None]
    scores = None if body.scores is None else body.scores[None]
    query = (body.vector[None], buckets, scores)
    encoded = await _encoded(call, body.n_probe, *query, where=body.where)
    return await _explain(call, *encoded, body, where=body.where)


@router.post(
    "/explain/image",
    **_describe(schemas.Explanation, 409, 415, takes=IMAGE_BODY, query=schemas.ItemOptions),
)
async def explain_image(request: Request) -> Response:
    """Explain the search for an image: the body is the image file."""
    call = Call(request)
    options = call.query(schemas.ItemOptions)
    await _begin(call, options)
    where = read_where(options.where)
    n_probe = await _n_ranked(call, options.n_probe, where=where)
    return await _explain(call, *await call.encode_image(n_probe), options, where=where)


@router.get(
    "/explain/item/{item_id:id}", **_describe(schemas.Explanation, 404, query=schemas.ItemOptions)
)
async def explain_item(request: Request, item_id: ItemId) -> Response:
    """Explain the search for an item of the table; itself is left out.

    With scores if the model can be asked about it, else by the buckets that it lies in.
    """
    call = Call(request)
    options = call.query(schemas.ItemOptions)
    await _begin(call, options)
    where = read_where(options.where)
    n_probe = await _n_ranked(call, options.n_probe, where=where)
    now, encoded = await call.encode_item(item_id, n_probe)
    itself = [now.id_of(item_id)]
    return await _explain(call, now, encoded, options, exclude_self=itself, where=where)
