"""Changes of a table, their binary format in the log, and how they are applied to an index."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hashcade.errors import CorruptIndexError
from hashcade.index import HashIndex

if TYPE_CHECKING:
    from hashcade.store.state import State

_HEAD = struct.Struct("<IBBHIII")  # CRC-32 of the rest; kind, has labels, 0, items, sparsity, dim
_ADD, _REMOVE = 1, 2
_MAX_BYTES = 16 << 20  # of one record: a longer change is split


@dataclass(frozen=True, eq=False)
class Add:
    """Items that were added, or that replace those with the same numbers."""

    numbers: npt.NDArray[np.int64]  # (n,)
    bucket_ids: npt.NDArray[np.int64]  # (n, sparsity)
    vectors: npt.NDArray[np.float32]  # (n, dim)
    labels: npt.NDArray[np.int64] | None  # (n,) codes of the catalog


@dataclass(frozen=True, eq=False)
class Remove:
    """Items that were removed."""

    numbers: npt.NDArray[np.int64]  # (n,)
    ids: Any = None  # of items removed by a filter; not stored in a record


Change = Add | Remove


@dataclass(frozen=True)
class Key:
    """Idempotency key of a request: a text chosen by the client, and a digest of the content."""

    text: str
    digest: str


@dataclass(frozen=True)
class Answer:
    """The answer to a request that added items."""

    ids: list[Any]
    n_items: int


Prepare = Callable[["State", int], Change]  # validates; int: next item number


def to_records(change: Change) -> Iterator[bytes]:
    """Serialize a change, as records that are applied one after the other."""
    step = max(1, _MAX_BYTES // _row_bytes(change))
    for start in range(0, len(change.numbers), step):
        rows = slice(start, start + step)
        parts = [change.numbers[rows].astype("<i8").tobytes()]
        kind, has_labels, sparsity, dim = _REMOVE, 0, 0, 0
        if isinstance(change, Add):
            kind, sparsity, dim = _ADD, change.bucket_ids.shape[1], change.vectors.shape[1]
            parts.append(change.bucket_ids[rows].astype("<i8").tobytes())
            parts.append(change.vectors[rows].astype("<f4").tobytes())
            if change.labels is not None:
                has_labels = 1
                parts.append(change.labels[rows].astype("<i8").tobytes())
        n = len(change.numbers[rows])
        body = b"".join([_HEAD.pack(0, kind, has_labels, 0, n, sparsity, dim)[4:], *parts])
        yield struct.pack("<I", zlib.crc32(body)) + body


def _row_bytes(change: Change) -> int:
    if isinstance(change, Remove):
        return 8
    sparsity, dim = change.bucket_ids.shape[1], change.vectors.shape[1]
    return int(16 + 8 * sparsity + 4 * dim)


def from_record(data: bytes) -> Change:
    """Parse a record of :func:`to_records`."""
    offset = _HEAD.size

    def array(dtype: str, *shape: int) -> npt.NDArray[Any]:
        nonlocal offset
        values = np.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)
        offset += values.nbytes
        return values.astype(values.dtype.newbyteorder("="))

    try:
        crc, kind, has_labels, _, n, sparsity, dim = _HEAD.unpack_from(data)
        if crc != zlib.crc32(data[4:]):
            raise ValueError("its checksum is wrong")
        numbers = array("<i8", n)
        if n and numbers.min() < 0:
            raise ValueError("it has negative numbers")
        if kind == _REMOVE:
            return Remove(numbers)
        if kind != _ADD:
            raise ValueError(f"kind {kind} is unknown")
        buckets, vectors = array("<i8", n, sparsity), array("<f4", n, dim)
        return Add(numbers, buckets, vectors, array("<i8", n) if has_labels else None)
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        raise CorruptIndexError(f"a change that was not saved cannot be read: {error}") from None


def apply_changes(index: HashIndex, changes: Sequence[Change]) -> None:
    """Apply changes to an index, which may already have some of them.

    The last change of an item wins.
    """
    if len(changes) == 1 and isinstance(changes[0], Remove):
        numbers = changes[0].numbers
        index.remove(numbers[index.contains(numbers)])
        return
    if len(changes) == 1 and isinstance(changes[0], Add):
        add = changes[0]
        index.upsert(add.numbers, add.bucket_ids, add.vectors, add.labels)
        return
    final: dict[int, tuple[Add, int] | None] = {}
    for change in changes:
        for row, item in enumerate(change.numbers.tolist()):
            final.pop(item, None)  # so that items come in the order of their last addition
            final[item] = (change, row) if isinstance(change, Add) else None
    removed = np.array([item for item, last in final.items() if last is None], dtype=np.int64)
    index.remove(removed[index.contains(removed)] if len(removed) else removed)
    rows = [(item, *last) for item, last in final.items() if last is not None]
    if rows:
        labels = [int(add.labels[row]) for _, add, row in rows if add.labels is not None]
        index.upsert(
            [item for item, _, _ in rows],
            np.stack([add.bucket_ids[row] for _, add, row in rows]),
            np.stack([add.vectors[row] for _, add, row in rows]),
            labels or None,
        )
    # Numbers of items that were removed again are not reused.
    highest = (int(c.numbers.max()) for c in changes if isinstance(c, Add) and len(c.numbers))
    index.reserve_ids(max(highest, default=-1) + 1)
