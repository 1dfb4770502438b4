"""Parquet files: embeddings, labels, ids and payload, each in columns of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashcade._extras import require_extra
from hashcade._io import open_regular
from hashcade.data.items import (
    AnyPath,
    Items,
    LabelledItems,
    check_expanded,
    checked_items,
    existing_path,
    reason,
)
from hashcade.errors import DataError

_BATCH_ROWS, _BATCH_BYTES = 65536, 256 << 20  # at most, that are read at a time


def load_parquet(
    path: AnyPath,
    *,
    items: str = "embedding",
    labels: str = "label",
    ids: str | None = None,
    payload: str | Sequence[str] | None = None,
) -> LabelledItems:
    """Load embeddings and labels from the columns ``items`` and ``labels`` of a Parquet file.

    An embedding is a list of numbers, in all rows of one length; a label is an integer or a
    string. ``ids`` is a column of ids, ``payload`` the columns that become the payload of the
    items: their names, or ``"all"`` for those that are not read as something else. Needs the extra
    ``parquet``, and memory for the result and one batch of rows.
    """
    file = existing_path(path)
    vectors, values, more = _read(file, items, labels, ids, payload)
    return replace(LabelledItems.from_arrays(vectors, values, source=str(file)), **more)


def load_parquet_items(
    file: Path,
    items: str = "embedding",
    ids: str | None = None,
    payload: str | Sequence[str] | None = None,
) -> Items:
    """Load embeddings without labels."""
    vectors, _, more = _read(file, items, None, ids, payload)
    return Items(checked_items(vectors, str(file)), source=str(file), **more)


def parquet_has_labels(file: Path) -> bool:
    """Whether a Parquet file has the column ``label``."""
    with open_parquet(file) as parquet:
        return "label" in parquet.schema_arrow.names


@contextmanager
def open_parquet(file: AnyPath, **options: Any) -> Iterator[Any]:
    """Open a file, or an address of fsspec; what is wrong with it is a ``DataError``."""
    parquet: Any = require_extra("pyarrow.parquet", "parquet")
    arrow: Any = require_extra("pyarrow", "parquet")
    try:
        with _source(file) as source, parquet.ParquetFile(source, **options) as opened:
            yield opened
    except (arrow.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise DataError(f"{file} is damaged, or not Parquet {reason(error)}") from None


def _source(file: AnyPath) -> Any:
    if "://" in str(file):
        return require_extra("fsspec", "remote").open(str(file), "rb")
    open_regular(file).close()
    return nullcontext(file)


def _read(
    file: Path,
    items: str,
    labels: str | None,
    ids: str | None,
    payload: str | Sequence[str] | None,
) -> tuple[NDArray[np.float32], list[object], dict[str, Any]]:
    """Embeddings, labels, and what there is of ids and payload."""
    single = {"items": items, "labels": labels, "ids": ids}
    columns = [(argument, name) for argument, name in single.items() if name is not None]
    fields = [payload] if isinstance(payload, str) else list(payload or ())
    vectors = np.empty((0, 0), np.float32)
    values: list[object] = []
    keys: list[object] = []
    kept: list[dict[str, Any]] = []
    start = 0
    with open_parquet(file) as parquet:
        if payload == "all":
            read = {name for _, name in columns}
            fields = [name for name in parquet.schema_arrow.names if name not in read]
        columns += [("payload", name) for name in fields]
        check_columns(parquet.schema_arrow, columns, file)
        names = list(dict.fromkeys(name for _, name in columns))
        n_rows = parquet.metadata.num_rows
        at_once = _rows_at_once(parquet, items, file)
        for batch in parquet.iter_batches(at_once, columns=names):
            column = batch.column(items)
            if start == 0:
                dim = column.value_lengths().fill_null(0)[0].as_py()
                check_expanded(file, 4 * n_rows * dim)
                vectors = np.empty((n_rows, dim), np.float32)
            if start + len(column) > n_rows:
                raise DataError(f"{file} is damaged: it has more than {n_rows} rows")
            rows = float_rows(column, vectors.shape[1], start, f"{file}: {items}")
            vectors[start : start + len(column)] = rows
            if labels is not None:
                values += batch.column(labels).to_pylist()
            if ids is not None:
                keys += batch.column(ids).to_pylist()
            if fields:
                kept += batch.select(fields).to_pylist()
            start += len(column)
    if start != len(vectors):
        raise DataError(f"{file} is damaged: it has {start} of {len(vectors)} rows")
    more: dict[str, Any] = {"ids": None if ids is None else tuple(keys)}
    return vectors, values, more | {"payload": tuple(kept) if fields else None}


def float_rows(column: Any, dim: int, start: int, what: str) -> NDArray[np.float32]:
    """A column of lists as float32[n, dim]; ``start`` is the number of its first row."""
    lengths = column.value_lengths().fill_null(0).to_numpy()
    wrong = np.flatnonzero(lengths != dim)
    if len(wrong):
        other = f"{lengths[wrong[0]]} numbers in row {start + wrong[0]}"
        raise DataError(f"{what} has {other}, must have {dim}")
    numbers = column.flatten().to_numpy(zero_copy_only=False)  # NaN for a missing one
    with np.errstate(over="ignore"):  # beyond float32: reported as infinite
        rows: NDArray[np.float32] = numbers.reshape(len(column), dim).astype(np.float32)
    return rows


def _rows_at_once(parquet: Any, items: str, file: Path) -> int:
    """Rows of a batch, by the first row; refuse a file that expands to far more than its size.

    Repeated values take no room in a file. Metadata of columns are not asked: pyarrow 26 ends the
    process if they are damaged.
    """
    metadata = parquet.metadata
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    n_bytes = sum(group.total_byte_size for group in groups)
    for batch in parquet.iter_batches(1, columns=[items]):
        n_bytes = max(n_bytes, 4 * metadata.num_rows * len(batch.column(items).flatten()))
        break
    check_expanded(file, n_bytes)
    return int(max(1, min(_BATCH_ROWS, _BATCH_BYTES * metadata.num_rows // max(n_bytes, 1))))


def check_columns(schema: Any, columns: list[tuple[str, str]], file: AnyPath) -> None:
    """Refuse a file that lacks a column, or whose items are not lists of numbers."""
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
