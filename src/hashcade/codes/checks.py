"""Checks of class scores, codes, groups and sparsity. They run at every training step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashcade._validate import as_array, checked_count, name_rows


def checked_scores(class_scores: object) -> NDArray[np.float64]:
    """Return finite scores as a C-contiguous float64 array, (n_classes, width)."""
    scores = as_array("class_scores", class_scores)
    if scores.dtype != np.float64 or not scores.flags.c_contiguous:  # or another byte order
        if scores.dtype.kind not in "fiub":
            raise ValueError(f"class_scores has dtype {scores.dtype}, must be real numbers")
        with np.errstate(over="ignore"):  # a long double beyond float64: reported as infinite below
            scores = np.ascontiguousarray(scores, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] == 0:
        allowed = "(n_classes, width) with width >= 1"
        raise ValueError(f"class_scores has shape {scores.shape}, must be {allowed}")
    if not math.isfinite(np.vdot(scores, scores)):  # may overflow: then look closely
        bad = ~np.isfinite(scores).all(axis=1)
        if bad.any():
            raise ValueError(f"class_scores has NaN or infinite values in {name_rows(bad)}")
    return scores


def checked_codes(class_codes: object, shape: tuple[int, ...] | None = None) -> NDArray[np.bool_]:
    """Return codes as a bool array, of the shape of the scores; numbers must be 0 or 1."""
    codes = as_array("class_codes", class_codes)
    if codes.dtype != np.bool_:
        if codes.dtype.kind not in "fiu":
            raise ValueError(f"class_codes has dtype {codes.dtype}, must be bool")
        as_bool = codes == 1
        if not (as_bool | (codes == 0)).all():
            raise ValueError("class_codes has values other than 0 and 1, must be bool")
        codes = as_bool
    if shape is not None and codes.shape != shape:
        raise ValueError(f"class_codes has shape {codes.shape}, class_scores has shape {shape}")
    return codes


def checked_integers(name: str, value: object) -> NDArray[Any]:
    """Return an array of integers of any shape."""
    array = as_array(name, value)
    if array.dtype.kind not in "iu" and array.size > 0:  # an empty list has no integer dtype
        raise ValueError(f"{name} has dtype {array.dtype}, must be integers")
    return array


def checked_groups(sibling_groups: object, n_classes: int) -> NDArray[np.int64]:
    """Return group numbers, one per class, as a C-contiguous int64 array, (n_classes,)."""
    groups = checked_integers("sibling_groups", sibling_groups)
    if groups.ndim != 1:
        raise ValueError(f"sibling_groups has shape {groups.shape}, must be ({n_classes},)")
    if len(groups) != n_classes:
        sizes = f"{len(groups)} entries, class_scores has {n_classes} classes"
        raise ValueError(f"sibling_groups has {sizes}")
    # uint64 beyond int64 wraps around, one to one: equal numbers stay equal.
    return np.ascontiguousarray(groups, dtype=np.int64)


def checked_sparsity(sparsity: object, width: int) -> int:
    """Return the number of active slots as an int: from 1 to ``width``."""
    count = checked_count("sparsity", sparsity)
    if count > width:
        raise ValueError(f"sparsity={count} must be <= width={width}")
    return count
