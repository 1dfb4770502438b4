"""Checks that the figures share. Each returns the one form that the code behind it works with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.codes._check import as_array, checked_count, name_rows, plain_labels

Ints = npt.NDArray[np.int64]


def checked_labels(
    name: str, value: object, n: int | None = None, of: str = ""
) -> npt.NDArray[Any]:
    """Return labels as a one-dimensional array of integers or strings."""
    labels = as_array(name, value)
    if labels.ndim != 1:
        raise ValueError(f"{name} has shape {labels.shape}, must be (n,)")
    if n is not None and len(labels) != n:
        raise ValueError(f"{name} has {len(labels)} entries, {of} has {n} rows")
    labels = plain_labels(labels)
    if labels.dtype.kind not in "iubU" and len(labels) > 0:
        raise ValueError(f"{name} has dtype {labels.dtype}, must be integers or strings")
    return labels


def joint_labels(
    query_labels: npt.NDArray[Any], item_labels: npt.NDArray[Any]
) -> tuple[Ints, Ints, npt.NDArray[Any]]:
    """Number the classes of queries and items together: two arrays of numbers, and the names."""
    if len(query_labels) and len(item_labels):
        kinds = query_labels.dtype.kind, item_labels.dtype.kind
        if (kinds[0] == "U") != (kinds[1] == "U"):
            raise ValueError(
                f"query_labels has dtype {query_labels.dtype}, item_labels has "
                f"{item_labels.dtype}: both must be integers or both strings"
            )
    names, numbers = np.unique(np.concatenate([query_labels, item_labels]), return_inverse=True)
    numbers = numbers.astype(np.int64)
    return numbers[: len(query_labels)], numbers[len(query_labels) :], names


def checked_ids(name: str, value: object, n_items: int | None) -> Ints:
    """Return results as int64[q, n]: row numbers of items, -1 where there is none."""
    ids = as_array(name, value)
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise ValueError(f"{name} has shape {ids.shape}, must be (q, n) with n >= 1")
    if len(ids) == 0:
        raise ValueError(f"{name} has shape {ids.shape}: there must be at least one query")
    if ids.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {ids.dtype}, must be integers")
    ids = ids.astype(np.int64, copy=False)
    bad = (ids < -1).any(axis=1)
    if n_items is not None:
        bad |= (ids >= n_items).any(axis=1)
    if bad.any():
        bound = "" if n_items is None else f" and < {n_items}, the number of items"
        raise ValueError(f"{name} must be >= -1{bound}, is not in {name_rows(np.asarray(bad))}")
    return ids


def checked_depth(value: int | None, n_columns: int) -> int:
    """Return how many results to look at: all of them for None."""
    wanted = n_columns if value is None else checked_count("n_neighbors", value)
    if wanted > n_columns:
        raise ValueError(f"n_neighbors={wanted} must be <= {n_columns}, the results per query")
    return wanted


def checked_depths(values: object) -> tuple[int, ...]:
    """Return numbers of neighbours, ascending, each once."""
    if not isinstance(values, Iterable):
        values = (values,)
    counts = sorted({checked_count("n_neighbors", value) for value in values})
    if not counts:
        raise ValueError("n_neighbors is empty, must name at least one number")
    return tuple(counts)


def right_results(ids: Ints, query_numbers: Ints, item_numbers: Ints) -> npt.NDArray[np.bool_]:
    """Which results have the class of their query, bool[q, n]; a missing one has not."""
    if len(item_numbers) == 0:
        return np.zeros(ids.shape, dtype=np.bool_)
    return np.asarray((item_numbers[ids] == query_numbers[:, None]) & (ids >= 0))
