"""JSON of strangers: read part by part, so that nobody else waits and memory stays small.

A parser that is written in C or Rust keeps every other thread from running until it returns, and
makes an object of every number. So arrays of numbers are parsed row by row into an array, and what
is left is measured before it is parsed. The first error ends it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from hashcade.serve.schemas import AddRequest
from hashcade.serve.settings import VALUE_COST, ServeSettings
from hashcade.table import HashTable

_FEW = 1000  # values that are not counted
_MAX_DEPTH = 150
_NUMBER_BYTES = 1000  # with the space around it
_MAX_NAME = 200  # bytes of the name of a field
_SPACE, _BLANKS = re.compile(rb"[ \t\n\r]*"), b" \t\n\r"
_MARK = re.compile(rb'[\[\]{},"]')
_OPEN, _CLOSE, _QUOTE = frozenset(b"[{"), frozenset(b"]}"), ord('"')
_STRICT = ConfigDict(strict=True)
_Float = Annotated[float, Field(allow_inf_nan=False)]
_Int = Annotated[int, Field(ge=0, le=2**63 - 1)]
_ROWS: dict[str, TypeAdapter[Any]] = {
    "f": TypeAdapter(Annotated[list[_Float], Field(fail_fast=True)], config=_STRICT),
    "i": TypeAdapter(Annotated[list[_Int], Field(fail_fast=True)], config=_STRICT),
}
_DTYPES: dict[str, Any] = {"f": np.dtype(np.float32), "i": np.dtype(np.int64)}
_Shape = tuple[int, ...]
Model = TypeVar("Model", bound=BaseModel)


class Axis(NamedTuple):
    """A dimension of an array: what it counts, the most there may be, and the name of that."""

    counts: str
    most: int
    limit: str


class Numbers(NamedTuple):
    """How an array of numbers is read: float32 or int64, and its dimensions."""

    kind: str  # "f" or "i"
    axes: tuple[Axis, ...]


class BodyError(ValueError):
    """What is wrong with a body, in one line."""


def read_body(
    body: bytes | bytearray, model: type[Model], table: HashTable, settings: ServeSettings,
    reserve: Callable[[int], None],
) -> Model:  # fmt: skip
    """The object in the body of a request; ``reserve`` takes memory for it, in bytes."""
    shape, dim = table.index.shape, table.index.dim
    if table.hasher is not None and not table.hasher.config_.takes_images:
        dim = max(dim, table.hasher.config_.item_shape[0])
    rows = Axis("items" if model is AddRequest else "queries", settings.max_batch, "max_batch")
    levels, slots = Axis("levels", shape.depth, "depth"), Axis("slots", shape.width, "width")
    buckets = Axis("bucket_ids", settings.max_probe, "max_probe")
    arrays = {
        "vector": Numbers("f", (Axis("numbers", dim, "dim"),)),
        "vectors": Numbers("f", (rows, Axis("numbers", dim, "dim"))),
        "bucket_ids": Numbers("i", (rows, buckets)),
        "scores": Numbers("f", (rows, levels, slots)),
    }
    if "vector" in model.model_fields:  # one query
        arrays |= {
            "bucket_ids": Numbers("i", (buckets,)),
            "scores": Numbers("f", (levels, slots)),
        }
    return read_json(
        body, model, arrays,
        max_rest=settings.max_body // 4,
        max_values=settings.max_values,
        reserve=lambda n_values: reserve(VALUE_COST * n_values) if n_values > _FEW else None,
    )  # fmt: skip


def read_json(
    body: bytes | bytearray,
    model: type[Model],
    arrays: Mapping[str, Numbers],
    *,
    max_rest: int,
    max_values: int,
    reserve: Callable[[int], None] = lambda n_values: None,
) -> Model:
    """The object in a body; ``arrays`` says which of its fields are arrays of numbers.

    All else may have ``max_rest`` bytes and ``max_values`` values; ``reserve`` is called with their
    number before there are any.
    """
    reader = _Reader(body, max_rest, max_values)
    found: dict[str, Any] = {}
    rest: list[bytes | memoryview] = []
    for name in reader.names():
        if name in found:
            raise BodyError(f"{name[:50]}: is given twice")
        if name not in model.model_fields:
            raise BodyError(f"{name[:50]}: Extra inputs are not permitted")
        found[name], value = None, memoryview(b"null")
        if name not in arrays:
            value = reader.value()
        elif model.model_fields[name].is_required() or not reader.skip(b"null"):
            found[name] = reader.array(name, arrays[name])  # is put in its place below
        rest += [b"," if rest else b"{", b'"%s":' % name.encode(), value]
    reserve(reader.n_values)
    text = b"".join([*rest, b"}"] if rest else [b"{}"])
    rest.clear()
    try:
        read = model.model_validate_json(text)
    except ValidationError as error:
        raise BodyError(_first_error(error)) from None
    for name, value in found.items():
        if isinstance(value, np.ndarray):
            setattr(read, name, value)
    return read


def _first_error(error: ValidationError, place: str = "") -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    names = ".".join(part for part in (place, *map(str, first["loc"])) if part)
    return f"{names or 'the body'}: {first['msg']}"


class _Reader:
    """A place in a body, which moves on."""

    def __init__(self, body: bytes | bytearray, max_rest: int, max_values: int) -> None:
        self._body, self._at = body, 0
        self._max_rest, self._max_values = max_rest, max_values
        self._n_rest = self.n_values = 0  # so far, beside arrays

    def names(self) -> Any:
        """Names of the object; before the next one, the value of the last must be read."""
        self._expect(b"{", "an object")
        while not self.skip(b"}"):
            self._space()
            start = self._at
            end = self._string_end(start + 1, start + _MAX_NAME)
            if self._body[start : start + 1] != b'"' or end < 0:
                raise self._error("a name in quotes")
            self._at = end
            try:
                name = from_json(bytes(self._body[start:end]))
            except ValueError as error:
                raise BodyError(f"the body: Invalid JSON: {error}") from None
            self._expect(b":", "a colon")
            yield name
            if not self.skip(b","):
                self._expect(b"}", "a comma or the end of the object")
                break
            self._space()
            if self._body[self._at : self._at + 1] == b"}":
                raise self._error("a name in quotes")
        self._space()
        if self._at < len(self._body):
            raise self._error("the end")

    def value(self) -> memoryview:
        """The text of a value, which is not parsed yet."""
        self._space()
        start, depth = self._at, 0
        self.n_values += 1
        limit = start + self._max_rest - self._n_rest
        end = start
        while (mark := _MARK.search(self._body, end, limit + 1)) is not None:
            first, end = self._body[mark.start()], mark.end()
            if first == _QUOTE:
                end = self._string_end(end, limit + 1)
                if end < 0:
                    break
            elif first in _CLOSE or (depth == 0 and first not in _OPEN):
                depth -= 1
                if depth < 0:  # of what the value is in
                    end = mark.start()
            else:
                depth += first in _OPEN
                self.n_values += 1
            if self.n_values > self._max_values:
                raise self._too_much("values", self._max_values)
            if depth > _MAX_DEPTH:
                most = f"more than {_MAX_DEPTH} levels deep"
                raise BodyError(f"the body: Invalid JSON: nested {most}")
            if depth <= 0:
                if end > limit:
                    break
                self._n_rest += end - start
                self._at = end
                return memoryview(self._body)[start:end]
        if len(self._body) > limit:
            raise self._too_much("bytes", self._max_rest)
        raise BodyError("the body: Invalid JSON: it ends within a value")

    def _string_end(self, at: int, limit: int) -> int:
        """Where a string ends that began before ``at``; -1: not before the limit."""
        while (quote := self._body.find(b'"', at, limit)) >= 0:
            before = self._body[at:quote]
            if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
                return quote + 1
            at = quote + 1  # the quote is escaped, so what is before it does not matter any more
        return -1

    @staticmethod
    def _too_much(what: str, most: int) -> BodyError:
        return BodyError(f"the body has more than {most} {what} beside its arrays of numbers")

    def array(self, name: str, numbers: Numbers) -> npt.NDArray[Any]:
        """An array of numbers."""
        data = bytearray()  # grows in its place: no second copy
        shape = self._rows(data, name, numbers.kind, numbers.axes)
        return np.frombuffer(data, _DTYPES[numbers.kind]).reshape(shape)

    def _rows(self, data: bytearray, name: str, kind: str, axes: tuple[Axis, ...]) -> _Shape:
        """Append the numbers of an array, and return its shape."""
        if len(axes) == 1:
            return self._row(data, name, kind, axes[0])
        self._expect(b"[", f"an array for {name}")
        shapes: list[_Shape] = []
        if not self.skip(b"]"):
            while True:
                if len(shapes) == axes[0].most:
                    raise _too_many(axes[0], len(shapes) + 1, at_least=True)
                shapes.append(self._rows(data, f"{name}.{len(shapes)}", kind, axes[1:]))
                if shapes[-1] != shapes[0]:
                    one, two = (" x ".join(map(str, shape)) for shape in (shapes[0], shapes[-1]))
                    raise BodyError(f"{name}: has rows of {one} and of {two} numbers")
                if not self.skip(b","):
                    break
            self._expect(b"]", "a comma or the end of the array")
        if not shapes and kind == "f":
            raise BodyError(f"{name}: is empty")
        return (len(shapes), *(shapes[0] if shapes else (0,) * (len(axes) - 1)))

    def _row(self, data: bytearray, name: str, kind: str, axis: Axis) -> _Shape:
        self._space()
        if self._body[self._at : self._at + 1] != b"[":
            raise self._error(f"an array of numbers for {name}")
        end = self._body.find(b"]", self._at) + 1
        if end == 0:
            raise self._error("the end of the array")
        n = self._body.count(b",", self._at, end) + 1
        if n > axis.most:
            raise _too_many(axis, n)
        if end - self._at > _NUMBER_BYTES * (n + 100):
            raise BodyError(f"{name}: has numbers of more than {_NUMBER_BYTES} digits")
        try:
            row = _ROWS[kind].validate_json(bytes(self._body[self._at : end]))
        except ValidationError as error:
            raise BodyError(_first_error(error, name)) from None
        if not row and kind == "f":
            raise BodyError(f"{name}: is empty")
        self._at = end
        with np.errstate(over="ignore"):  # beyond float32 is infinite, and refused where it is used
            data += np.array(row, _DTYPES[kind]).tobytes()
        return (len(row),)

    def _space(self) -> None:
        if self._body[self._at : self._at + 1] in _BLANKS:
            space = _SPACE.match(self._body, self._at)
            assert space is not None  # it may be empty
            self._at = space.end()

    def skip(self, mark: bytes) -> bool:
        """Whether this comes next; if so it is passed."""
        self._space()
        here = self._body.startswith(mark, self._at)
        self._at += len(mark) * here
        return here

    def _expect(self, mark: bytes, meaning: str) -> None:
        if not self.skip(mark):
            raise self._error(meaning)

    def _error(self, expected: str) -> BodyError:
        place = f"at byte {self._at} of {len(self._body)}"
        return BodyError(f"the body: Invalid JSON: expected {expected} {place}")


def _too_many(axis: Axis, n: int, *, at_least: bool = False) -> BodyError:
    sign = ">=" if at_least else "="
    return BodyError(f"the number of {axis.counts}{sign}{n} must be <= {axis.limit}={axis.most}")
