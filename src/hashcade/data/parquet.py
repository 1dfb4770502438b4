"""Parquet files: columns of embeddings, labels, ids and payload."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashcade._extras import require_extra
from hashcade._progress import progress_bar
from hashcade.data.items import (
    MAPPED_BYTES,
    AnyPath,
    Items,
    LabelledItems,
    check_expanded,
    checked_items,
    encode_labels,
    reason,
)
from hashcade.data.sampling import stratified_sample
from hashcade.data.shard_cache import cached_vectors
from hashcade.data.shards import find_shards, open_shard, shard_size, shard_version
from hashcade.errors import DataError

_BATCH_ROWS, _BATCH_BYTES = 65536, 256 << 20  # at most read at a time


def load_parquet(
    path: AnyPath | Sequence[AnyPath],
    *,
    items: str = "embedding",
    labels: str = "label",
    ids: str | None = None,
    payload: str | Sequence[str] | None = None,
    sample: int | None = None,
    random_state: int = 0,
    cache: AnyPath | None = None,
    verbose: bool | None = None,
) -> LabelledItems:
    """Load embeddings and labels from the columns ``items`` and ``labels`` of Parquet files.

    ``path`` is a file, anything that :func:`find_shards` takes, or a list of these. An embedding is
    a list of numbers, of the same length in all rows; a label is an integer or a string. ``ids`` is
    a column of ids, ``payload`` the columns of the payload of the items: their names, or ``"all"``
    for all others. With ``sample`` only a balanced sample of this size is loaded. Needs the
    extra ``parquet``.

    Embeddings of more than a gibibyte are written to a file in ``cache`` (None:
    ``$HASHCADE_CACHE``, or ``~/.cache/hashcade``), which is memory-mapped, and reused the next
    time; an interrupted run resumes.
    """
    paths = [path] if isinstance(path, str) or not isinstance(path, Sequence) else path
    columns = Columns(items, labels, ids, payload)
    shards = find_shards([str(part) for part in paths])
    return load_shards(shards, columns, sample, random_state, cache, verbose)


def load_shards(
    shards: Sequence[str], columns: Columns, sample: int | None, random_state: int,
    cache: AnyPath | None, verbose: bool | None,
) -> LabelledItems:  # fmt: skip
    """Load embeddings and labels from files of :func:`find_shards`."""
    others = columns.read(shards)
    rows = None
    if sample is not None:
        rows = stratified_sample(encode_labels(others.labels)[0], sample, random_state=random_state)
        others = others.part(rows)
    vectors = columns.vectors(shards, rows, cache, verbose)
    labelled = LabelledItems.from_arrays(vectors, others.labels, source=_source(shards))
    return replace(labelled, **others.as_fields())


def load_parquet_items(
    shards: Sequence[str],
    items: str = "embedding",
    ids: str | None = None,
    payload: str | Sequence[str] | None = None,
    verbose: bool | None = None,
) -> Items:
    """Load embeddings without labels."""
    columns = Columns(items, None, ids, payload)
    others, source = columns.read(shards), _source(shards)
    vectors = columns.vectors(shards, None, None, verbose)
    return Items(checked_items(vectors, source), source=source, **others.as_fields())


def parquet_has_labels(shards: Sequence[str]) -> bool:
    """Whether Parquet files, by the first one, have the column ``label``."""
    with open_parquet(shards[0]) as parquet:
        return "label" in parquet.schema_arrow.names


@dataclass
class _OtherColumns:
    """The columns other than the embeddings."""

    labels: Any = ()
    ids: list[object] | None = None
    payload: list[dict[str, Any]] | None = None
    unread: tuple[str, ...] = ()

    def part(self, rows: NDArray[np.int64]) -> _OtherColumns:
        def take(values: Any) -> Any:
            if isinstance(values, np.ndarray):
                return values[rows]
            return None if values is None else [values[row] for row in rows.tolist()]

        return _OtherColumns(take(self.labels), take(self.ids), take(self.payload), self.unread)

    def as_fields(self) -> dict[str, Any]:
        ids = None if self.ids is None else tuple(self.ids)
        payload = None if self.payload is None else tuple(self.payload)
        return {"ids": ids, "payload": payload, "unread": self.unread}


@dataclass(frozen=True)
class Columns:
    """The columns that are read, by name."""

    items: str
    labels: str | None
    ids: str | None
    payload: str | Sequence[str] | None

    def read(self, shards: Sequence[str]) -> _OtherColumns:
        """Read all columns but the embeddings."""
        labels: list[Any] = []
        result = _OtherColumns(ids=None if self.ids is None else [])
        for shard in shards:
            with open_parquet(shard) as parquet:
                fields = self._check(parquet.schema_arrow, shard)
                _batch_rows(parquet, self.items, shard)
                names = [name for name in (self.labels, self.ids, *fields) if name is not None]
                if fields and result.payload is None:
                    result.payload = []
                unique = list(dict.fromkeys(names))
                used = {self.items, *names}
                result.unread = tuple(n for n in parquet.schema_arrow.names if n not in used)
                for batch in parquet.iter_batches(_BATCH_ROWS, columns=unique) if names else ():
                    if self.labels is not None:
                        labels.append(_values(batch.column(self.labels)))
                    if result.ids is not None:
                        result.ids += batch.column(self.ids).to_pylist()
                    if result.payload is not None:
                        result.payload += batch.select(fields).to_pylist()
        if labels and all(isinstance(part, np.ndarray) for part in labels):
            result.labels = np.concatenate(labels)
        else:
            result.labels = [label for part in labels for label in part]
        return result

    def vectors(
        self, shards: Sequence[str], rows: NDArray[np.int64] | None, cache: AnyPath | None,
        verbose: bool | None,
    ) -> NDArray[Any]:  # fmt: skip
        """Read the embeddings, or those of some rows, ascending; many of them into a file."""
        sizes = [self._size(shard) for shard in shards]
        dim = next((dim for n_rows, dim in sizes if n_rows), 0)
        ends = np.cumsum([n_rows for n_rows, _ in sizes])
        total = int(ends[-1]) if rows is None else len(rows)
        mapped = rows is None and 4 * total * dim > MAPPED_BYTES
        quiet = verbose is False or (len(shards) == 1 and not mapped)
        with progress_bar("reading", quiet=quiet) as progress:

            def parts(shard: int) -> Iterator[NDArray[np.float32]]:
                first = int(ends[shard]) - sizes[shard][0]
                for part in self._parts(shards[shard], sizes[shard][0], dim):
                    if rows is not None:
                        low, high = np.searchsorted(rows, [first, first + len(part)])
                        yield part[rows[low:high] - first]
                    else:
                        yield part
                    first += len(part)
                    progress(first, int(ends[-1]))

            if mapped:
                names = (s if "://" in s else os.path.abspath(s) for s in shards)
                versions = zip(names, map(shard_version, shards), strict=True)
                return cached_vectors(cache, [self.items, *versions], (total, dim), parts)
            vectors, start = np.empty((total, dim), np.float32), 0
            for shard in range(len(shards)):
                for part in parts(shard):
                    vectors[start : start + len(part)] = part
                    start += len(part)
        return vectors

    def _size(self, shard: str) -> tuple[int, int]:
        """Number of rows, and the dimension of the first one."""
        with open_parquet(shard) as parquet:
            for batch in parquet.iter_batches(1, columns=[self.items]):
                return parquet.metadata.num_rows, len(batch.column(self.items).flatten())
        return 0, 0

    def _parts(self, shard: str, n_rows: int, dim: int) -> Iterator[NDArray[np.float32]]:
        """Embeddings of one file, batch by batch."""
        start = 0
        with open_parquet(shard) as parquet:
            batch_rows = _batch_rows(parquet, self.items, shard)
            for batch in parquet.iter_batches(batch_rows, columns=[self.items]):
                column = batch.column(self.items)
                if start + len(column) > n_rows:
                    raise DataError(f"{shard} is damaged: it has more than {n_rows} rows")
                yield float_rows(column, dim, start, f"{shard}: {self.items}")
                start += len(column)
        if start != n_rows:
            raise DataError(f"{shard} is damaged: it has {start} of {n_rows} rows")

    def _check(self, schema: Any, shard: str) -> list[str]:
        """Check that a file has the columns; return those of the payload."""
        single = {"items": self.items, "labels": self.labels, "ids": self.ids}
        columns = [(argument, name) for argument, name in single.items() if name is not None]
        fields = payload_columns(self.payload, schema.names, {*single.values()})
        check_columns(schema, [*columns, *(("payload", name) for name in fields)], shard)
        return fields


def _values(column: Any) -> Any:
    """Integers as an array, which needs a quarter of the memory; others as a list."""
    types: Any = require_extra("pyarrow.types", "parquet")
    if types.is_integer(column.type) and column.null_count == 0:
        return column.to_numpy()
    return column.to_pylist()


def _source(shards: Sequence[str]) -> str:
    return shards[0] if len(shards) == 1 else f"{len(shards)} files, {shards[0]} to {shards[-1]}"


@contextmanager
def open_parquet(file: AnyPath, **options: Any) -> Iterator[Any]:
    """Open a local file or an fsspec URL; errors are raised as ``DataError``."""
    parquet: Any = require_extra("pyarrow.parquet", "parquet")
    arrow: Any = require_extra("pyarrow", "parquet")
    try:
        with open_shard(file) as source, parquet.ParquetFile(source, **options) as opened:
            yield opened
    except (arrow.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise DataError(f"{file} is damaged, or not Parquet {reason(error)}") from None


def float_rows(column: Any, dim: int, start: int, what: str) -> NDArray[np.float32]:
    """Convert a column of lists to float32[n, dim]; ``start`` is the number of its first row."""
    lengths = column.value_lengths().fill_null(0).to_numpy()
    bad_rows = np.flatnonzero(lengths != dim)
    if len(bad_rows):
        actual = f"{lengths[bad_rows[0]]} numbers in row {start + bad_rows[0]}"
        raise DataError(f"{what} has {actual}, must have {dim}")
    numbers = column.flatten().to_numpy(zero_copy_only=False)  # NaN for missing values
    with np.errstate(over="ignore"):  # beyond float32: reported as infinite
        rows: NDArray[np.float32] = numbers.reshape(len(column), dim).astype(np.float32)
    return rows


def check_columns(schema: Any, columns: list[tuple[str, str]], file: AnyPath) -> None:
    """Raise ``DataError`` if a column is missing, or items are not lists of numbers."""
    for argument, name in columns:
        if schema.names.count(name) != 1:
            message = f"{file} has the columns {', '.join(schema.names)}; looked for {name}"
            raise DataError(message, hint=f"name another with {argument}= (--{argument})")
    types: Any = require_extra("pyarrow.types", "parquet")
    items = columns[0][1]
    kind = schema.field(items).type
    is_list = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
    if not is_list or not (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)):
        raise DataError(f"{file}: {items} has type {kind}, must be a list of numbers")


def payload_columns(payload: Any, names: Sequence[str], used: set[str | None]) -> list[str]:
    """Columns of the payload: those given by name, or with ``"all"`` those that are not used."""
    if payload == "all":
        return [name for name in names if name not in used]
    return [payload] if isinstance(payload, str) else list(payload or ())


def _batch_rows(parquet: Any, items: str, shard: str) -> int:
    """Rows of a batch, by the first row; refuse a file that expands to far more than its size.

    Repeated values take no space in a file. Metadata of columns are not used: with damaged ones
    pyarrow 26 kills the process.
    """
    metadata = parquet.metadata
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    n_bytes = sum(group.total_byte_size for group in groups)
    for batch in parquet.iter_batches(1, columns=[items]):
        n_bytes = max(n_bytes, 4 * metadata.num_rows * len(batch.column(items).flatten()))
        break
    check_expanded(shard, shard_size(shard), n_bytes)
    return int(max(1, min(_BATCH_ROWS, _BATCH_BYTES * metadata.num_rows // max(n_bytes, 1))))
