"""Pieces that the routes share: one request and what it may ask for, answers, descriptions."""

from __future__ import annotations

import asyncio
import contextlib
import email.message
import hashlib
import inspect
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.routing import request_response

from hashcade.data import read_image
from hashcade.errors import Cancelled
from hashcade.index import Cancel, Encoded
from hashcade.serve.binary_format import MEDIA_TYPE
from hashcade.serve.json_body import read_body
from hashcade.serve.middleware import EXCHANGE, SMALL, Exchange
from hashcade.serve.schemas import Problem
from hashcade.serve.service import Service, Snapshot, errors_as_answers
from hashcade.store import stoppable

IMAGE_BODY = (
    "image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff", MEDIA_TYPE,
)  # fmt: skip
_MULTIPART = "multipart/form-data"
_MAX_PARTS = 20  # of a form, of which one is the file
_PROBLEMS = {
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
REFERENCE = "#/components/schemas/{model}"  # to the description of a body
_PATIENCE = 0.02  # seconds of work after which it is looked whether the client is still there
_STOP_SECONDS = 0.5  # what is stopped has so long to say how far it came
_STALL_SECONDS, _THREADS_SECONDS = 0.02, 10.0  # see Call.short_work
_OF_SOME = (404, 409, 415)  # the others are those of every route
_SHORT_QUERY = 200  # bytes of an address's parameters that are remembered: most come again
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Route(APIRoute):
    """A route; a function that takes the request alone is a plain route of Starlette.

    There is nothing that FastAPI could read or close for it, and to find that out takes a while.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        """Take what FastAPI gives to its routes."""
        super().__init__(*args, **more)
        if list(inspect.signature(self.endpoint).parameters) == ["request"]:
            self.app = request_response(self.endpoint)


class Call:
    """One request: the service behind it, its deadline, and the threads that work for it."""

    def __init__(self, request: Request) -> None:
        """Take a request; 422 if its address has a parameter that the route does not have."""
        self._request = request
        self._parameters = _parameters_of(request)
        self.service: Service = request.app.state.service
        self._exchange: Exchange = request.scope[EXCHANGE]
        self.large = False  # whether its search takes long: others do not wait behind it
        self.cancel = Cancel()  # set when nobody waits for the work any more

    @cached_property
    def now(self) -> Snapshot:
        """The table as it was when this request first asked for it, or called :meth:`renew`."""
        return self.service.now()

    def renew(self) -> None:
        """Take the table as it is now, because a change has been waited for."""
        vars(self).pop("now", None)

    async def search_thread(self, work: Callable[[], T]) -> T:
        """Run a search, or something as short, in a thread; 504 when it is too late."""
        pool = self.service.large_pool if self.large else self.service.search_pool
        return await self._before(pool.submit(self._stoppable(work)))

    def short_work(self, work: Callable[[], T]) -> T | None:
        """Run a search of about a millisecond in the event loop; None if it must not be now.

        To hand it to a thread and back takes half as long. What takes much longer than it should
        has waited for a disk, so for some seconds the event loop does not try that again.
        """
        start = time.monotonic()
        if start < self.service.short_work_after or self.service.stopping:
            return None
        with errors_as_answers():
            result = work()
        if (end := time.monotonic()) - start > _STALL_SECONDS:
            self.service.short_work_after = end + _THREADS_SECONDS
        return result

    async def slow_thread(self, work: Callable[[], T], *, finish: bool = False) -> T:
        """Run what decodes, encodes or saves, one after the other."""
        if finish:
            return await self._finished(self.service.slow_pool.submit(work))
        return await self._before(self.service.slow_pool.submit(self._stoppable(work)))

    def _stoppable(self, work: Callable[[], T]) -> Callable[[], T]:
        def run() -> T:
            with stoppable(self.cancel):
                return work()

        return run

    async def change(self, begin: Callable[..., Future[Any]], *args: Any, **more: Any) -> Any:
        """Make a change, and return it when it is on disk."""
        with errors_as_answers():
            future = begin(*args, **more)
        return await self._finished(future)

    async def digest(self) -> str:
        """What this request, with its address and body, is known by when it comes again."""
        url, body = self._request.url, self._exchange.body

        def digest() -> str:
            sha = hashlib.sha256(f"{url.path}?{url.query}\n".encode())
            sha.update(body)
            return sha.hexdigest()

        if len(body) <= SMALL:
            return digest()
        return await self._before(self.service.parse_pool.submit(digest))

    async def _finished(self, future: Future[T]) -> T:
        """Wait, also beyond the deadline if it has begun.

        A change must not be reported as failed while it is being made.
        """
        try:
            if not await _is_done(future, self._seconds_left()) and future.cancel():
                raise HTTPException(504, f"{self._too_late} before it began: nothing was done")
            await _is_done(future, None)
            with errors_as_answers():
                return future.result()
        finally:
            future.cancel()  # this task was cancelled
            del future  # with its exception, whose traceback has this frame: both would stay

    async def _before(self, future: Future[T]) -> T:
        """Wait until the deadline, or until the client has gone; then the work is stopped."""
        cancels = self.service.cancels
        cancels.add(self.cancel)
        if self.service.stopping:
            self.cancel.set()
        try:
            status, why = 504, self._too_late
            if not await _is_done(future, min(self._seconds_left(), _PATIENCE)):
                disconnect = asyncio.ensure_future(self._disconnected())
                await _is_done(future, self._seconds_left(), disconnect)
                if disconnect.done() and not future.done():
                    status, why = 499, "the client has gone"
                disconnect.cancel()
            if not future.done():
                self.cancel.set()
                if future.cancel():
                    raise HTTPException(status, f"{why} before it began: nothing was done")
                if not await _is_done(future, _STOP_SECONDS):
                    raise HTTPException(status, f"{why}, the work is not finished")
            elif self.service.stopping:
                status, why = 503, "the service is being stopped"
            with errors_as_answers():
                try:
                    return future.result()
                except Cancelled as error:
                    raise HTTPException(status, f"{why}: {error}") from None
        finally:
            if not future.done():  # this task was cancelled
                self.cancel.set()
                future.cancel()
            del future  # with its exception, whose traceback has this frame: both would stay
            cancels.discard(self.cancel)

    @property
    def _too_late(self) -> str:
        return f"the deadline of {self.service.settings.deadline:g} s has passed"

    def _seconds_left(self) -> float:
        return max(self._exchange.deadline - asyncio.get_running_loop().time(), 0.0)

    async def _disconnected(self) -> None:
        """Wait until the client has gone."""
        with contextlib.suppress(HTTPException):  # of a body that nobody reads
            while (await self._request.receive())["type"] != "http.disconnect":
                pass
            return
        await asyncio.Event().wait()

    # The slow thread also reloads the table: so model and index fit together.

    async def encode(self, vectors: Any, n_probe: int = 1) -> tuple[Snapshot, Encoded]:
        """What the model makes of embeddings."""

        def work() -> tuple[Snapshot, Encoded]:
            now = self.service.now()
            hasher = now.table.hasher
            if hasher is None:
                raise HTTPException(422, "one of bucket_ids and scores must be given: no model")
            if hasher.config_.takes_images:
                raise HTTPException(422, "the model takes images: give bucket_ids or scores")
            return now, now.table.encode(vectors, n_probe=n_probe, cancel=self.cancel)

        return await self.slow_thread(work)

    async def encode_item(self, item_id: str, n_probe: int) -> tuple[Snapshot, Encoded]:
        """An item of the table as a query."""
        return await self.slow_thread(partial(self.service.encode_item, item_id, n_probe))

    async def encode_image(self, n_probe: int = 1) -> tuple[Snapshot, Encoded]:
        """What the model makes of the image in the body."""
        self.service.image_size(self.service.now())  # refused before the body is read
        body = self.body(*IMAGE_BODY, _MULTIPART)
        content_type = self._request.headers["content-type"]
        is_form = content_type.lower().startswith(_MULTIPART)
        image = file_of_form(content_type, body) if is_form else bytes(body)

        def work() -> tuple[Snapshot, Encoded]:
            now, max_pixels = self.service.now(), self.service.settings.max_pixels
            pixels = read_image(image, size=self.service.image_size(now), max_pixels=max_pixels)
            return now, now.table.encode(pixels[None], n_probe=n_probe, cancel=self.cancel)

        return await self.slow_thread(work)

    def query(self, model: type[M]) -> M:
        """The parameters of the address; 422 if they do not fit.

        FastAPI can read them as well, and takes longer for that than a search takes.
        """
        try:
            return model.model_validate(self._parameters)
        except ValidationError as error:
            raise RequestValidationError(error.errors()) from None

    def header(self, name: str, kind: TypeAdapter[T]) -> T | None:
        """A header of the request, None without it; 422 if it does not fit."""
        value = self._request.headers.get(name)
        try:
            return None if value is None else kind.validate_python(value)
        except ValidationError as error:
            raise RequestValidationError([{**error.errors()[0], "loc": (name,)}]) from None

    @property
    def _media_type(self) -> str:
        return self._request.headers.get("content-type", "").partition(";")[0].strip().lower()

    def _wrong_media_type(self, expected: str) -> HTTPException:
        return HTTPException(415, f"the Content-Type is {self._media_type!r}, must be {expected}")

    def body(self, *types: str) -> bytearray:
        """The body, if it says that it is of one of these types."""
        if self._media_type not in types:
            raise self._wrong_media_type(" or ".join(types))
        body = self._exchange.body
        if not body:
            raise HTTPException(422, "the body is empty")
        return body

    async def json(self, model: type[M]) -> M:
        """The body as an object of JSON."""
        if not re.fullmatch("application/.*json", self._media_type):
            raise self._wrong_media_type(
                "application/json: curl -H 'Content-Type: application/json'"
            )
        return await self.parse(self._exchange.body, model)

    async def parse(self, text: bytes | bytearray, model: type[M]) -> M:
        """An object of JSON; what takes time is parsed in a thread, one after the other."""
        table, settings = self.now.table, self.service.settings
        work = partial(read_body, text, model, table, settings, self._exchange.reserve)
        if len(text) > SMALL:
            return await self._before(self.service.parse_pool.submit(work))
        with errors_as_answers():
            return work()

    def check_limit(self, name: str, value: int, limit_name: str) -> None:
        """Answer 422 if a number is above its limit."""
        limit = getattr(self.service.settings, limit_name)
        if value > limit:
            raise HTTPException(422, f"{name}={value} must be <= {limit_name}={limit}")


def _parameters_of(request: Request) -> Mapping[str, str]:
    """The parameters of the address; 422 if it has one that the route does not have."""
    text = request.scope["query_string"]
    if not text:
        return {}
    parameters = _parsed(text) if len(text) <= _SHORT_QUERY else _parsed.__wrapped__(text)
    allowed = request.app.state.parameters[request.scope["route"].path_format, request.method]
    unknown = [name for name in parameters if name not in allowed]
    if unknown:
        shown = ", ".join(sorted(allowed)) or "none"
        raise HTTPException(422, f"Unknown parameter {unknown[0][:50]!r} (allowed: {shown})")
    return parameters


@lru_cache(1024)
def _parsed(text: bytes) -> Mapping[str, str]:
    return dict(QueryParams(text))


async def _is_done(
    future: Future[Any], seconds: float | None, other: asyncio.Future[Any] | None = None
) -> bool:
    """Wait so long for work in a thread, or until something else is done; whether the work is."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    def wake_from_thread(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(wake_from_thread)
    if other is not None:
        other.add_done_callback(wake)
    timer = None if seconds is None else loop.call_later(seconds, wake)
    try:
        await woken
    finally:
        if timer is not None:
            timer.cancel()
    return future.done()


def file_of_form(content_type: str, body: bytes | bytearray) -> bytes:
    """The one file of a form, as ``curl -F file=@query.jpg`` sends it; 422 if it has another.

    Written out: a form of one file does not need the package that FastAPI takes for forms.
    """
    message = email.message.Message()
    message["Content-Type"] = content_type
    mark = b"\r\n--" + str(message.get_param("boundary", "")).encode("latin-1", "replace")
    files = []
    for part in (b"\r\n" + body).split(mark, _MAX_PARTS)[1:-1]:
        head, blank, content = part.partition(b"\r\n\r\n")
        if blank and b"filename" in head.lower():
            files.append(bytes(content))
    if len(files) != 1 or not files[0]:
        raise HTTPException(
            422, f"the form has {len(files)} files, must have one that is not empty"
        )
    return files[0]


def as_json(value: object) -> Response:
    """Answer with a value of the documented form; infinity, which JSON lacks, becomes null."""
    return Response(to_json(value, inf_nan_mode="null"), media_type="application/json")


def describe(
    answer: type[BaseModel] | dict[str, Any],
    *statuses: int,
    takes: Iterable[str] | type[BaseModel] = (),
    query: type[BaseModel] | None = None,
    headers: Mapping[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Describe a route: its answer, its own errors, its body: JSON, or bytes of some types.

    ``query`` and ``headers`` are what :meth:`Call.query` and :meth:`Call.header` read.
    """
    is_model = isinstance(answer, type)
    problems = {
        status: {"description": text, "model": Problem}
        for status, text in _PROBLEMS.items()
        if status in statuses or status not in _OF_SOME
    }
    described: dict[str, Any] = {
        "response_class": JSONResponse if is_model else Response,
        "responses": {200: {"model": answer} if is_model else answer, **problems},
    }
    extra: dict[str, Any] = {}
    described["openapi_extra"] = extra
    if parameters := _parameters(query, headers or {}):
        extra["parameters"] = parameters
    if isinstance(takes, type):
        schema = {"$ref": REFERENCE.format(model=takes.__name__)}
        content = {"application/json": {"schema": schema}}
        extra["requestBody"] = {"required": True, "content": content}
    elif takes:
        body: dict[str, Any] = {"required": True, "content": contents(*takes, minLength=1)}
        if IMAGE_BODY[0] in takes:
            file = {"type": "string", "format": "binary", "minLength": 1}
            form = {"type": "object", "properties": {"file": file}, "required": ["file"]}
            body["content"][_MULTIPART] = {"schema": form}
        extra["requestBody"] = body
    return described


def _parameters(
    query: type[BaseModel] | None, headers: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Describe the parameters of an address, and headers."""
    model = {} if query is None else query.model_json_schema()
    described = [
        {"name": name, "in": "query", "required": name in model.get("required", ()), "schema": part}
        for name, part in model.get("properties", {}).items()
    ]
    for parameter in described:
        if "description" in parameter["schema"]:
            parameter["description"] = parameter["schema"]["description"]
    for name, part in headers.items():
        described.append({"name": name, "in": "header", "required": False, "schema": part})
    return described


def contents(*types: str, **more: Any) -> dict[str, Any]:
    """Describe bytes of these types."""
    return {kind: {"schema": {"type": "string", "format": "binary", **more}} for kind in types}
