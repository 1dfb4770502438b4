"""Checks of the input of an index; arrays of the right kind are not copied."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._validate import as_array, checked_choice, checked_vectors, name_ids, name_rows
from hashcade.codes import CodeShape
from hashcade.errors import add_hint
from hashcade.index.manifest import VECTOR_DTYPES
from hashcade.index.segment import NO_LABEL, Float32s, Int64s, Items
from hashcade.index.snapshot import Snapshot

NO_IDS = np.empty(0, dtype=np.int64)
_UNIT_TOLERANCE = 1e-6  # a length this close to 1 is not scaled again: scaling is idempotent


def checked_items(
    snapshot: Snapshot, bucket_ids: Any, vectors: Any, ids: Any, labels: Any, next_id: int
) -> Items:
    """Return items as an index stores them; see ``HashIndex.checked_items``."""
    values = checked_vectors("vectors", vectors, snapshot.dim)
    if snapshot.unit_length:
        values = _to_unit_length(values)
    if snapshot.dtype == "float16":
        values = _to_float16(values)
    n = len(values)
    buckets = checked_buckets(bucket_ids, n, snapshot.shape, snapshot.shape.sparsity)
    if labels is not None and not snapshot.with_labels:
        error = ValueError("labels were given, but the index has no labels")
        raise add_hint(error, "build the index with labels, -1 for items without")
    classes = None
    if snapshot.with_labels:
        label_values = np.full(n, NO_LABEL) if labels is None else labels
        classes = integers("labels", label_values, n, NO_LABEL, kinds="iub")
    if ids is not None:
        return Items(checked_ids("ids", ids, n), buckets, values, classes)
    if next_id + n > 2**63:
        message = f"the next free id is {next_id}, with {n} items ids would go beyond 2**63-1"
        raise add_hint(ValueError(message), "give ids that are free")
    return Items(np.arange(n) + np.int64(next_id if n else 0), buckets, values, classes)


def _to_unit_length(vectors: Float32s) -> Float32s:
    refuse_zero_vectors(vectors)
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    lengths[np.abs(lengths - 1.0) < _UNIT_TOLERANCE] = 1.0
    scaled = np.empty_like(vectors)
    np.divide(vectors, lengths[:, None], out=scaled, casting="same_kind")
    return scaled


def _to_float16(vectors: Float32s) -> Float32s:
    with np.errstate(over="ignore"):
        rounded = vectors.astype(np.float16)
    overflows = ~np.isfinite(rounded).all(axis=1)
    if overflows.any():
        raise ValueError(f"vectors has values beyond float16 (65504) in {name_rows(overflows)}")
    return rounded.astype(np.float32)


def refuse_zero_vectors(vectors: Float32s) -> None:
    """Raise ``ValueError`` if a vector is zero everywhere: it has no cosine."""
    is_zero = ~vectors.any(axis=1)
    if is_zero.any():
        raise ValueError(f"vectors has only zeros in {name_rows(is_zero)}, which has no cosine")


def plain(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array as kernels take it, writeable and C-contiguous; a copy if it is not."""
    if array.dtype == dtype and array.flags.carray:
        return np.asarray(array)
    return np.array(array, dtype=dtype, order="C", subok=False)


def checked_queries(value: object, dim: int) -> Float32s:
    """Return queries as float32[q, dim]; a single vector is one query."""
    vectors = as_array("vectors", value)
    vectors = vectors[None, :] if vectors.ndim == 1 else vectors
    return plain(checked_vectors("vectors", vectors, dim), np.float32)


def checked_buckets(value: object, n: int, shape: CodeShape, sparsity: int | None = None) -> Int64s:
    """Return bucket ids as int64[n, p]: any p for queries, ``sparsity`` for items."""
    buckets = as_array("bucket_ids", value)
    if buckets.dtype.kind not in "iu" and buckets.size > 0:
        raise ValueError(f"bucket_ids has dtype {buckets.dtype}, must be integers")
    if buckets.ndim == 0 and n == 1:
        buckets = buckets[None, None]
    if buckets.ndim == 1:  # one bucket per row; for a single query: all its buckets
        buckets = buckets[None, :] if n == 1 and sparsity is None else buckets[:, None]
    if buckets.ndim != 2:
        raise ValueError(f"bucket_ids has shape {buckets.shape}, must be (n, buckets per row)")
    if len(buckets) != n:
        raise ValueError(f"bucket_ids has {len(buckets)} rows, vectors has {n}")
    if n > 0 and buckets.shape[1] == 0:
        raise ValueError(f"bucket_ids has shape {buckets.shape}, must name at least one bucket")
    if n > 0 and sparsity is not None and buckets.shape[1] != sparsity:
        raise ValueError(f"bucket_ids has {buckets.shape[1]} columns, shape.sparsity={sparsity}")
    bad = np.any((buckets < 0) | (buckets >= shape.n_buckets), axis=1)
    if bad.any():
        outside = f"outside 0..{shape.n_buckets - 1} in {name_rows(bad)}"
        raise ValueError(f"bucket_ids has values {outside}, n_buckets={shape.n_buckets}")
    return plain(buckets, np.int64)


def checked_scores(value: object, n: int, shape: CodeShape) -> npt.NDArray[np.float64]:
    """Return slot scores as float64[n, depth, width]."""
    scores = as_array("scores", value)
    if scores.ndim == 2 and n == 1:
        scores = scores[None]
    if scores.shape != (n, shape.depth, shape.width):
        expected = f"(n={n}, depth={shape.depth}, width={shape.width})"
        raise ValueError(f"scores has shape {scores.shape}, must be {expected}")
    if scores.dtype.kind not in "fiub":
        raise ValueError(f"scores has dtype {scores.dtype}, must be real numbers")
    scores = plain(scores, np.float64)
    bad = ~(scores.max(axis=(1, 2)) < np.inf)  # true for NaN as well
    if bad.any():
        raise ValueError(f"scores has NaN or +inf in {name_rows(bad)}")
    return scores


def integers(name: str, value: object, n: int | None, at_least: int, kinds: str = "iu") -> Int64s:
    """Return a column of integers as int64[n]."""
    values = as_array(name, value)
    if values.ndim != 1:
        raise ValueError(f"{name} has shape {values.shape}, must be (n,)")
    if n is not None and len(values) != n:
        raise ValueError(f"{name} has {len(values)} entries, vectors has {n} rows")
    if values.dtype.kind not in kinds and len(values) > 0:
        raise ValueError(f"{name} has dtype {values.dtype}, must be integers")
    bad = values < at_least if values.dtype.kind == "i" else values > np.iinfo(np.int64).max
    if bad.any():
        raise ValueError(f"{name} must be in {at_least}..2**63-1, is not in {name_rows(bad)}")
    return plain(values, np.int64)


def checked_ids(name: str, value: object, n: int | None = None) -> Int64s:
    """Return ids as int64[n]: not negative, and none of them twice."""
    ids = integers(name, value, n, 0)
    ordered = np.sort(ids)
    duplicates = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(duplicates) > 0:
        raise ValueError(f"{name} has {name_ids(np.unique(duplicates))} more than once")
    return ids


def checked_filter(value: object) -> Int64s:
    """Return the ids of a filter, in any order: ids, or where a mask is true."""
    if isinstance(value, Set):
        value = list(value)
    allowed = as_array("filter_ids", value)
    if allowed.ndim != 1:
        raise ValueError(f"filter_ids has shape {allowed.shape}, must be (n,)")
    if allowed.dtype.kind not in "biu" and len(allowed) > 0:
        raise ValueError(f"filter_ids has dtype {allowed.dtype}, must be bool or integers")
    if allowed.dtype.kind == "b":
        return np.flatnonzero(allowed)
    return allowed[(allowed >= 0) & (allowed <= np.iinfo(np.int64).max)].astype(np.int64)


def checked_path(value: object, shape: CodeShape) -> tuple[int, ...]:
    """Return the path to a node: up to ``depth`` slots."""
    path = integers("path", value, None, 0)
    if len(path) > shape.depth or path.max(initial=0) >= shape.width:
        expected = f"at most depth={shape.depth} slots < width={shape.width}"
        raise ValueError(f"path={path.tolist()} must be {expected}")
    return tuple(path.tolist())


def check_storage(first_pass: object, dtype: object = "float32", unit_length: bool = False) -> None:
    """Raise ``ValueError`` for an unknown or unsupported way to store vectors."""
    if first_pass is not None:
        checked_choice("first_pass", first_pass, ["int8"])
    checked_choice("dtype", dtype, VECTOR_DTYPES)
    if dtype == "float16" and unit_length:
        raise ValueError(
            "float16 is not for vectors of unit length (cosine): rounding changes lengths"
        )
