"""Changes of an index as bytes: what the journal keeps."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hashcade.errors import CorruptIndexError

_HEAD = struct.Struct("<BBHIII")  # kind, flags, zero, items, buckets per item, dim
_ADD, _REMOVE = 1, 2
_WITH_LABELS = 1


@dataclass(frozen=True, eq=False)
class Add:
    """Items that were added, with the ids that they got.

    Attributes
    ----------
    ids : int64[n]
    bucket_ids : int64[n, sparsity]
    vectors : float32[n, dim]
    labels : int64[n] or None
    """

    ids: npt.NDArray[np.int64]
    bucket_ids: npt.NDArray[np.int64]
    vectors: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64] | None


@dataclass(frozen=True, eq=False)
class Remove:
    """Items that were removed: ids, int64[n]."""

    ids: npt.NDArray[np.int64]


Change = Add | Remove


def to_bytes(changes: Iterable[Change]) -> bytes:
    """Return changes in their order; numbers are little-endian."""
    parts: list[bytes] = []
    for change in changes:
        n = len(change.ids)
        if isinstance(change, Remove):
            parts += [_HEAD.pack(_REMOVE, 0, 0, n, 0, 0), change.ids.astype("<i8").tobytes()]
            continue
        flags = 0 if change.labels is None else _WITH_LABELS
        several, dim = change.bucket_ids.shape[1], change.vectors.shape[1]
        parts += [
            _HEAD.pack(_ADD, flags, 0, n, several, dim),
            change.ids.astype("<i8").tobytes(),
            change.bucket_ids.astype("<i8").tobytes(),
            change.vectors.astype("<f4").tobytes(),
        ]
        if change.labels is not None:
            parts.append(change.labels.astype("<i8").tobytes())
    return b"".join(parts)


def from_bytes(data: bytes) -> Iterator[Change]:
    """Read what :func:`to_bytes` wrote. The bytes are known to be those that were written."""
    at = 0

    def array(dtype: str, *shape: int) -> npt.NDArray[np.generic]:
        nonlocal at
        count = int(np.prod(shape, dtype=np.int64))
        values = np.frombuffer(data, dtype, count, at).reshape(shape)
        at += values.nbytes
        return values

    while at < len(data):
        try:
            kind, flags, _, n, several, dim = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            ids = array("<i8", n).astype(np.int64)
            if kind == _REMOVE:
                yield Remove(ids)
                continue
            if kind != _ADD:
                raise ValueError(f"kind {kind} is unknown")
            buckets = array("<i8", n, several).astype(np.int64)
            vectors = array("<f4", n, dim).astype(np.float32)
            labels = array("<i8", n).astype(np.int64) if flags & _WITH_LABELS else None
        except (ValueError, struct.error) as error:
            raise CorruptIndexError(f"a record of the journal cannot be read: {error}") from None
        yield Add(ids, buckets, vectors, labels)
