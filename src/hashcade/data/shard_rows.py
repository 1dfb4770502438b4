"""Batches of rows of one Parquet file of many, local or at an fsspec URL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hashcade._extras import require_extra
from hashcade._validate import name_rows
from hashcade.data.parquet import check_columns, float_rows, open_parquet, payload_columns
from hashcade.data.shards import shard_version
from hashcade.errors import DataError, add_hint

_BATCH_BYTES = 8 << 20  # read at a time


@dataclass(frozen=True)
class ShardColumns:
    """Columns of items, labels and ids (None: there are none), and payload."""

    items: str = "embedding"
    labels: str | None = None
    ids: str | None = None
    payload: tuple[str, ...] = ()

    def resolved(self, address: str, payload: str | Sequence[str] | None) -> ShardColumns:
        """Resolve default labels, and a ``payload`` of ``"all"``, by the schema of a file."""
        with open_parquet(address) as parquet:
            names = parquet.schema_arrow.names
        labels = self.labels or ("label" if "label" in names else None)
        fields = payload_columns(payload, names, {self.items, labels, self.ids})
        return replace(self, labels=labels, payload=tuple(fields))

    @property
    def listed(self) -> list[tuple[str, str]]:
        """Pairs of argument and column; the items first."""
        single = {"items": self.items, "labels": self.labels, "ids": self.ids}
        pairs = [(argument, name) for argument, name in single.items() if name is not None]
        return pairs + [("payload", name) for name in self.payload]


class ShardInfo(NamedTuple):
    """Properties of a shard, without its rows."""

    address: str
    version: str  # changes with the file
    n_rows: int
    row_bytes: int  # of all columns, about
    id_kind: str | None  # "int" or "str"; None without ids
    labels: list[Any]  # unique ones, in order of appearance


class ShardRows(NamedTuple):
    """Some rows of a shard."""

    start: int  # number of the first one
    items: NDArray[np.float32]  # (n, dim)
    labels: tuple[NDArray[np.int64], list[Any]] | None  # positions in a list of labels, -1: none
    ids: Any  # int64[n], or a list of text; None without ids
    payload: list[dict[str, Any]] | None


def read_shard_info(address: str, columns: ShardColumns) -> ShardInfo:
    """Check the columns of a shard, and read its labels."""
    version = shard_version(address)
    with open_parquet(address) as parquet:
        schema, metadata = parquet.schema_arrow, parquet.metadata
        check_columns(schema, columns.listed, address)
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        n_bytes = sum(group.total_byte_size for group in groups)
        kind = None if columns.ids is None else _id_kind(schema, columns.ids, address)
        labels: dict[Any, None] = {}
        if columns.labels is not None:
            for batch in parquet.iter_batches(columns=[columns.labels]):
                labels.update(dict.fromkeys(batch.column(0).unique().to_pylist()))
    n_rows = metadata.num_rows
    return ShardInfo(address, version, n_rows, n_bytes // max(n_rows, 1), kind, list(labels))


def read_shard_rows(
    address: str, columns: ShardColumns, start: int, stop: int, *, dim: int, row_bytes: int
) -> Iterator[ShardRows]:
    """Read rows ``start`` to ``stop - 1``, some megabytes at a time."""
    names = list(dict.fromkeys(name for _, name in columns.listed))
    with open_parquet(address, buffer_size=1 << 20) as parquet:
        metadata = parquet.metadata
        sizes = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
        ends = np.cumsum(sizes)
        first = int(np.searchsorted(ends, start, side="right"))
        position = int(ends[first - 1]) if first else 0
        groups = list(range(first, int(np.searchsorted(ends, stop, side="left")) + 1))
        n_rows = max(1, min(65536, _BATCH_BYTES // max(row_bytes, 4 * dim)))
        for batch in parquet.iter_batches(n_rows, row_groups=groups, columns=names):
            low, high = max(start - position, 0), min(stop - position, len(batch))
            if low < high:
                yield _rows(batch.slice(low, high - low), columns, position + low, dim, address)
            position += len(batch)
            if position >= stop:
                return
    raise DataError(f"{address} is damaged: it has {position} of {stop} rows")


def _rows(batch: Any, columns: ShardColumns, start: int, dim: int, address: str) -> ShardRows:
    items = float_rows(batch.column(columns.items), dim, start, f"{address}: {columns.items}")
    bad = ~np.isfinite(items).all(axis=1)
    if bad.any():
        rows = name_rows(np.concatenate([np.zeros(start, np.bool_), bad]))
        error = DataError(f"{address}: {columns.items} has NaN or values beyond float32 in {rows}")
        raise add_hint(error, "remove or fix these rows")
    labels = ids = payload = None
    if columns.labels is not None:
        encoded = batch.column(columns.labels).dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        labels = (codes, encoded.dictionary.to_pylist())
    if columns.ids is not None:
        column = batch.column(columns.ids)
        if column.null_count:
            row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise DataError(f"{address}: {columns.ids} has no value in row {row}")
        is_int = _id_kind(batch.schema, columns.ids, address) == "int"
        ids = column.to_numpy(zero_copy_only=False) if is_int else column.to_pylist()
    if columns.payload:
        payload = batch.select(list(columns.payload)).to_pylist()
    return ShardRows(start, items, labels, ids, payload)


def _id_kind(schema: Any, name: str, address: str) -> str:
    types: Any = require_extra("pyarrow.types", "parquet")
    kind = schema.field(name).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_integer(kind):
        return "int"
    if types.is_string(kind) or types.is_large_string(kind):
        return "str"
    raise DataError(f"{address}: {name} has type {kind}, ids must be integers or text")
