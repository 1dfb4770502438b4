"""The shape of a table, and the two names of a bucket: its id and its path of slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hashcade._validate import as_array, checked_count, name_rows
from hashcade.codes.checks import checked_codes, checked_sparsity

_MAX_BUCKETS = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class CodeShape:
    """A tree of ``depth`` levels with ``width`` slots each: ``width ** depth`` buckets.

    A bucket is a leaf of the tree. Its path names the slot taken at each level; its id is the
    path read as a number in base ``width``, with level 1 as the most significant digit. Buckets
    under one parent therefore have consecutive ids.

    Parameters
    ----------
    width
        Slots per level (d in the paper).
    depth
        Levels (k in the paper).
    sparsity
        Active slots at the last level (k_s in the paper), so an item lies in this many buckets.
        At the levels above exactly one slot is active.

    Examples
    --------
    >>> shape = CodeShape(width=10, depth=3)
    >>> shape.n_buckets
    1000
    >>> shape.bucket_ids([[4, 0, 7]]).tolist()
    [407]
    >>> shape.paths(407).tolist()
    [4, 0, 7]
    """

    width: int
    depth: int
    sparsity: int = 1

    def __post_init__(self) -> None:
        width = checked_count("width", self.width)
        depth = checked_count("depth", self.depth)
        sparsity = checked_sparsity(self.sparsity, width)
        # 2**63 is too large already, so a depth beyond that needs no giant number to be refused.
        if width > 1 and (depth > 63 or width**depth > _MAX_BUCKETS):
            raise ValueError(
                f"width={width} with depth={depth} gives width**depth = {width}**{depth} buckets,"
                f" must be <= 2**63 - 1 = {_MAX_BUCKETS}"
            )
        # numpy integers are accepted, and kept as ints: products of them must not wrap around.
        object.__setattr__(self, "width", width)
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "sparsity", sparsity)

    @property
    def n_buckets(self) -> int:
        """Number of buckets, occupied or not: ``width ** depth``."""
        return int(self.width**self.depth)

    # -- id <-> path -----------------------------------------------------------------------

    def bucket_ids(self, paths: ArrayLike) -> NDArray[np.int64]:
        """Ids, int64[...], of the buckets at the ends of paths, int[..., depth] in 0..width-1."""
        slots = _integers("paths", paths)
        if slots.ndim == 0 or slots.shape[-1] != self.depth:
            raise ValueError(f"paths has shape {slots.shape}, must be (..., depth={self.depth})")
        _refuse_outside("paths", slots, "width", self.width, row_axes=slots.ndim - 1)
        return self._join(slots.astype(np.int64, copy=False))

    def paths(self, bucket_ids: ArrayLike) -> NDArray[np.int64]:
        """Paths, int64[..., depth], to buckets, int[...]: the inverse of :meth:`bucket_ids`."""
        ids = _integers("bucket_ids", bucket_ids)
        _refuse_outside("bucket_ids", ids, "n_buckets", self.n_buckets, row_axes=ids.ndim)
        rest = ids.astype(np.int64)  # a copy: divided down level by level
        paths = np.empty((*rest.shape, self.depth), dtype=np.int64)
        for level in reversed(range(self.depth)):
            rest, paths[..., level] = np.divmod(rest, self.width)
        return paths

    # -- codes and scores -> ids -------------------------------------------------------------

    def codes_to_bucket_ids(self, class_codes: ArrayLike) -> NDArray[np.int64]:
        """Buckets of classes, int64[n, sparsity], in ascending order, from their codes.

        Codes, bool[depth, n, width], are as the solver gives them: one active slot per class at
        the levels above the last, ``sparsity`` at the last.
        """
        codes = checked_codes(class_codes)
        if codes.ndim != 3 or (codes.shape[0], codes.shape[2]) != (self.depth, self.width):
            raise ValueError(
                f"class_codes has shape {codes.shape}, must be "
                f"(depth={self.depth}, n_classes, width={self.width})"
            )
        n_active = codes.sum(axis=2)  # (depth, n)
        for level in range(self.depth):
            expected = self.sparsity if level == self.depth - 1 else 1
            bad = n_active[level] != expected
            if bad.any():
                raise ValueError(
                    f"class_codes must have {expected} active slot(s) per class at level "
                    f"{level + 1} of {self.depth}, has another number in {name_rows(bad)}"
                )
        n_classes = codes.shape[1]
        upper = codes[:-1].argmax(axis=2).T  # (n, depth - 1)
        last = np.nonzero(codes[-1])[1].reshape(n_classes, self.sparsity)
        return self._leaves(upper, last)

    def scores_to_bucket_ids(self, scores: ArrayLike) -> NDArray[np.int64]:
        """Buckets of items, int64[n, sparsity], best first: the hash function (equation 1).

        From slot scores, float[n, depth, width]: the best slot at each of the levels above the
        last, the ``sparsity`` best at the last. Of equal scores the lower slot comes first.
        Infinite scores are accepted, NaN is not.
        """
        values = as_array("scores", scores)
        if values.ndim != 3 or values.shape[1:] != (self.depth, self.width):
            raise ValueError(
                f"scores has shape {values.shape}, must be "
                f"(n, depth={self.depth}, width={self.width})"
            )
        if values.dtype.kind not in "fiub":
            raise ValueError(f"scores has dtype {values.dtype}, must be real numbers")
        if values.dtype.kind != "f":
            values = values.astype(np.float64)
        nan = np.isnan(values).any(axis=(1, 2))
        if nan.any():
            raise ValueError(f"scores has NaN in {name_rows(nan)}")
        upper = values[:, :-1].argmax(axis=2)  # (n, depth - 1); argmax takes the first of equals
        if self.sparsity == 1:
            last = values[:, -1].argmax(axis=1)[:, None]
        else:
            last = np.argsort(-values[:, -1], axis=1, kind="stable")[:, : self.sparsity]
        return self._leaves(upper, last)

    # -- helpers: slots are known to be in range here ------------------------------------------

    def _join(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Read slots (..., levels) as numbers in base ``width`` (Horner's rule)."""
        ids = np.zeros(slots.shape[:-1], dtype=np.int64)
        for level in range(slots.shape[-1]):
            ids = np.asarray(ids * self.width + slots[..., level])
        return ids

    def _leaves(self, upper: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids from the shared path above (n, depth - 1) and the last slots (n, sparsity)."""
        return np.asarray(self._join(upper)[:, None] * self.width + last, dtype=np.int64)


def _integers(name: str, value: object) -> NDArray[Any]:
    array = as_array(name, value)
    if array.dtype.kind not in "iu" and array.size > 0:  # an empty list has no dtype of its own
        raise ValueError(f"{name} has dtype {array.dtype}, must be integers")
    return array


def _refuse_outside(
    name: str, values: NDArray[Any], bound_name: str, bound: int, *, row_axes: int
) -> None:
    """Refuse values outside 0..bound-1. Rows are counted along the first of the row axes."""
    bad = (values < 0) | (values >= bound)
    if not bad.any():
        return
    where = ""
    if row_axes > 0:
        where = f" in {name_rows(np.asarray(bad.reshape(len(bad), -1).any(axis=1)))}"
    raise ValueError(
        f"{name} has values outside 0..{bound - 1}{where}, must be >= 0 and < {bound_name}={bound}"
    )
