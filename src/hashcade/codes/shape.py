"""The shape of a table, and the conversion between bucket ids and paths of slots."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hashcade._validate import as_array, checked_count, name_rows
from hashcade.codes.checks import checked_codes, checked_integers, checked_sparsity

Ints = NDArray[np.int64]

_MAX_BUCKETS = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class CodeShape:
    """A tree of ``depth`` levels with ``width`` slots each (k and d in the paper).

    A bucket is a leaf of the tree. Its path is the slot at each level; its id is the path read
    as a number in base ``width``, with level 1 as the most significant digit. Buckets
    under one parent therefore have consecutive ids. ``sparsity`` (k_s) slots are active at the
    last level, so an item is in this many buckets; at the levels above exactly one is active.

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
        # 2**63 is too large already: do not compute a huge power only to refuse it.
        if width > 1 and (depth > 63 or width**depth > _MAX_BUCKETS):
            raise ValueError(
                f"width={width} with depth={depth} gives width**depth = {width}**{depth} buckets,"
                f" must be <= 2**63 - 1 = {_MAX_BUCKETS}"
            )
        # numpy integers are accepted, and stored as int: their products must not wrap around.
        for name, value in (("width", width), ("depth", depth), ("sparsity", sparsity)):
            object.__setattr__(self, name, value)

    @property
    def n_buckets(self) -> int:
        """Number of buckets, occupied or not: ``width ** depth``."""
        return int(self.width**self.depth)

    def bucket_ids(self, paths: ArrayLike) -> Ints:
        """Ids, int64[...], of the buckets at the ends of paths, int[..., depth] in 0..width-1."""
        slots = checked_integers("paths", paths)
        if slots.ndim == 0 or slots.shape[-1] != self.depth:
            raise ValueError(f"paths has shape {slots.shape}, must be (..., depth={self.depth})")
        _check_range("paths", slots, "width", self.width, row_axes=slots.ndim - 1)
        return self._join(slots.astype(np.int64, copy=False))

    def paths(self, bucket_ids: ArrayLike) -> Ints:
        """Paths, int64[..., depth], to buckets, int[...]: the inverse of :meth:`bucket_ids`."""
        ids = checked_integers("bucket_ids", bucket_ids)
        _check_range("bucket_ids", ids, "n_buckets", self.n_buckets, row_axes=ids.ndim)
        remainders = ids.astype(np.int64)  # a copy: divided level by level
        paths = np.empty((*remainders.shape, self.depth), dtype=np.int64)
        for level in reversed(range(self.depth)):
            remainders, paths[..., level] = np.divmod(remainders, self.width)
        return paths

    def codes_to_bucket_ids(self, class_codes: ArrayLike) -> Ints:
        """Buckets of classes, int64[n, sparsity], in ascending order, from their codes.

        Codes, bool[depth, n, width], are as the solver returns them: one active slot per class
        at the levels above the last, ``sparsity`` at the last.
        """
        codes = checked_codes(class_codes)
        if codes.ndim != 3 or (codes.shape[0], codes.shape[2]) != (self.depth, self.width):
            allowed = f"(depth={self.depth}, n_classes, width={self.width})"
            raise ValueError(f"class_codes has shape {codes.shape}, must be {allowed}")
        n_active = codes.sum(axis=2)  # (depth, n)
        for level in range(self.depth):
            expected = self.sparsity if level == self.depth - 1 else 1
            bad = n_active[level] != expected
            if bad.any():
                raise ValueError(
                    f"class_codes must have {expected} active slot(s) per class at level "
                    f"{level + 1} of {self.depth}, has another number in {name_rows(bad)}"
                )
        upper = codes[:-1].argmax(axis=2).T  # (n, depth - 1)
        last_slots = np.nonzero(codes[-1])[1].reshape(codes.shape[1], self.sparsity)
        return self._leaves(upper, last_slots)

    def scores_to_bucket_ids(self, scores: ArrayLike) -> Ints:
        """Buckets of items, int64[n, sparsity], best first: the hash function (equation 1).

        From slot scores, float[n, depth, width]: the best slot at each of the levels above the
        last, the ``sparsity`` best at the last. Of equal scores the lower slot comes first.
        Infinite scores are accepted, NaN is not.
        """
        values = as_array("scores", scores)
        if values.ndim != 3 or values.shape[1:] != (self.depth, self.width):
            allowed = f"(n, depth={self.depth}, width={self.width})"
            raise ValueError(f"scores has shape {values.shape}, must be {allowed}")
        if values.dtype.kind not in "fiub":
            raise ValueError(f"scores has dtype {values.dtype}, must be real numbers")
        if values.dtype.kind != "f":
            values = values.astype(np.float64)
        has_nan = np.isnan(values).any(axis=(1, 2))
        if has_nan.any():
            raise ValueError(f"scores has NaN in {name_rows(has_nan)}")
        upper = values[:, :-1].argmax(axis=2)  # (n, depth - 1); ties: the first
        if self.sparsity == 1:
            last_slots = values[:, -1].argmax(axis=1)[:, None]
        else:
            last_slots = np.argsort(-values[:, -1], axis=1, kind="stable")[:, : self.sparsity]
        return self._leaves(upper, last_slots)

    def _join(self, slots: Ints) -> Ints:
        """Read slots (..., levels) as numbers in base ``width``."""
        ids = np.zeros(slots.shape[:-1], dtype=np.int64)
        for level in range(slots.shape[-1]):
            ids = np.asarray(ids * self.width + slots[..., level])
        return ids

    def _leaves(self, upper: Ints, last_slots: Ints) -> Ints:
        """Ids from the shared path above (n, depth - 1) and the last slots (n, sparsity)."""
        return np.asarray(self._join(upper)[:, None] * self.width + last_slots, dtype=np.int64)


def _check_range(
    name: str, values: NDArray[Any], bound_name: str, bound: int, *, row_axes: int
) -> None:
    """Raise ``ValueError`` for values outside 0..bound-1; rows are along the first row axis."""
    bad = (values < 0) | (values >= bound)
    if bad.any():
        where = f" in {name_rows(bad.reshape(len(bad), -1).any(axis=1))}" if row_axes > 0 else ""
        allowed = f"must be >= 0 and < {bound_name}={bound}"
        raise ValueError(f"{name} has values outside 0..{bound - 1}{where}, {allowed}")


def expected_speedup(shape: CodeShape, *, limit: bool = False) -> float:
    """Expected ratio of database size to candidates, if buckets are used evenly.

    Let every item choose uniformly at random: one of d = ``width`` slots at each of the levels 1
    to k-1, and s = ``sparsity`` different slots at level k = ``depth``. An item is a candidate if
    it shares all upper slots with the query, and at least one slot of the last level::

        speed-up = d^(k-1) / (1 - C(d-s, s) / C(d, s))

    For k = 1 this is the formula of the paper. ``limit=True`` gives its limit for d ≫ s instead,
    d^k / s², which is never larger. This is not a forecast: with C balanced classes and pure
    buckets the speed-up is about C, however large the table is.

    >>> expected_speedup(CodeShape(width=32, depth=2))
    1024.0
    >>> expected_speedup(CodeShape(width=4, depth=1, sparsity=2))
    1.2
    """
    d, s = shape.width, shape.sparsity
    if limit:
        return float(Fraction(shape.n_buckets, s * s))
    n_choices = comb(d, s)
    n_sharing = n_choices - comb(d - s, s)  # that share a slot with a given choice; >= 1
    return float(Fraction(d ** (shape.depth - 1) * n_choices, n_sharing))
