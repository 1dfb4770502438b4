"""Parquet files with a column of embeddings and a column of labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._extras import require_extra
from hashcade._validate import list_rows
from hashcade.data._files import existing, reason
from hashcade.data._items import LabelledItems
from hashcade.errors import DataError

_BATCH_ROWS = 65536


def load_parquet(
    path: str | Path, *, embedding: str = "embedding", label: str = "label"
) -> LabelledItems:
    """Load embeddings and labels from a Parquet file.

    Parameters
    ----------
    path
        One file.
    embedding
        The column with the embeddings: a list of numbers in every row, all of one length
        (a fixed-size list, or a list).
    label
        The column with the labels: integers or strings.

    Returns
    -------
    LabelledItems
        float32[n, m] embeddings.

    Raises
    ------
    DataError
        If a column is not there or of another kind, if a row is empty or of another length, or
        if the file is damaged.
    ImportError
        If pyarrow, of the extra ``parquet``, is not installed.

    Notes
    -----
    Memory: the result, and some ten thousand rows beside it.
    """
    require_extra("pyarrow.parquet", "parquet")
    vectors, labels = read_parquet(existing(path), embedding, label)
    return LabelledItems.from_arrays(vectors, labels, source=str(path))


def columns_of_parquet(path: Path) -> list[str]:
    """Names of the columns of a Parquet file."""
    parquet: Any = require_extra("pyarrow.parquet", "parquet")
    arrow: Any = require_extra("pyarrow", "parquet")
    try:
        return list(parquet.read_schema(path).names)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: damaged, or not Parquet {reason(error)}") from None


def read_parquet(
    path: Path, embedding: str, label: str | None
) -> tuple[npt.NDArray[np.float32], list[object]]:
    """Embeddings, and the labels if their column is named."""
    parquet: Any = require_extra("pyarrow.parquet", "parquet")
    arrow: Any = require_extra("pyarrow", "parquet")
    columns = {"embedding": embedding} | ({} if label is None else {"label": label})
    try:
        with parquet.ParquetFile(path) as file:
            _check_columns(file.schema_arrow, columns, path, arrow)
            n_rows = file.metadata.num_rows
            vectors: npt.NDArray[np.float32] | None = None
            labels: list[object] = []
            at = 0
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(columns.values())):
                rows = _vectors(batch.column(embedding), at, path, embedding)
                if vectors is None:
                    vectors = np.empty((n_rows, rows.shape[1]), np.float32)
                if rows.shape[1] != vectors.shape[1]:
                    raise DataError(
                        f"{path}: {embedding} has {rows.shape[1]} numbers in row {at}, "
                        f"{vectors.shape[1]} in row 0"
                    )
                with np.errstate(over="ignore"):  # beyond float32: reported as infinite
                    vectors[at : at + len(rows)] = rows
                if label is not None:
                    labels += batch.column(label).to_pylist()
                at += len(rows)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: damaged, or not Parquet {reason(error)}") from None
    if vectors is None:
        raise DataError(f"{path}: has no rows")
    return vectors, labels


def _check_columns(schema: Any, columns: dict[str, str], path: Path, arrow: Any) -> None:
    """The columns are there, and one holds lists of numbers."""
    for option, name in columns.items():
        if schema.names.count(name) != 1:
            raise DataError(
                f"{path}: has the columns {', '.join(schema.names)}; looked for {name}; "
                f"another can be named with {option}="
            )
    embedding = columns["embedding"]
    kind = schema.field(embedding).type
    types = arrow.types
    is_list = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
    if not is_list or not (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)):
        raise DataError(f"{path}: {embedding} has the type {kind}, must be a list of numbers")


def _vectors(column: Any, start: int, path: Path, name: str) -> npt.NDArray[Any]:
    """One array of embeddings from a piece of the column that begins with row ``start``."""
    if column.null_count:
        rows = start + np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        raise DataError(f"{path}: {name} has no value in {list_rows(rows.tolist())}")
    flat = column.flatten()
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != lengths[0])
    if len(wrong):
        raise DataError(
            f"{path}: {name} has {lengths[wrong[0]]} numbers in row {start + wrong[0]}, "
            f"{lengths[0]} in row {start}"
        )
    if flat.null_count:
        places = np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))
        rows = start + np.unique(places // lengths[0])
        raise DataError(f"{path}: {name} lacks numbers in {list_rows(rows.tolist())}")
    numbers: npt.NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    return numbers.reshape(len(column), int(lengths[0]))
