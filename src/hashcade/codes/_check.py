"""Input checks that the functions of this package share.

They run at every training step, so the good path is a handful of calls, and what it takes to
write a helpful message is spent only once something is wrong. Each check returns the value in
the one form that the code behind it works with. An array that already has this form is
returned as it is, not copied: whoever calls a check must not write into the result.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._validate import list_rows

_FLOAT64 = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)


def name_rows(bad: npt.NDArray[np.bool_]) -> str:
    """Name the rows where ``bad`` (one bool per row) is true: ``rows 3, 17``, ten at most."""
    return list_rows(np.flatnonzero(bad).tolist())


def as_array(name: str, value: object) -> npt.NDArray[Any]:
    """Take a list, an array or a torch tensor (without importing torch) as a numpy array."""
    if isinstance(value, np.ndarray):
        return value
    tensor: Any = value
    if hasattr(tensor, "detach"):  # a tensor: out of autograd, and into main memory
        tensor = tensor.detach().cpu()
        try:
            return np.asarray(tensor)
        except TypeError:  # bfloat16 and its like, which numpy does not have
            return np.asarray(tensor.float())
    try:
        return np.asarray(value)
    except ValueError as error:  # rows of different length
        raise ValueError(f"{name} is not a rectangular array: {error}") from None


def checked_scores(class_scores: object) -> npt.NDArray[np.float64]:
    """Return finite scores as a C-contiguous float64 array, (n_classes, width)."""
    scores = as_array("class_scores", class_scores)
    if scores.dtype != _FLOAT64 or not scores.flags.c_contiguous or not scores.dtype.isnative:
        if scores.dtype.kind not in "fiub":
            raise ValueError(f"class_scores has dtype {scores.dtype}, must be real numbers")
        with np.errstate(over="ignore"):  # a long double beyond float64: named as infinite below
            scores = np.ascontiguousarray(scores, dtype=_FLOAT64)
    if scores.ndim != 2 or scores.shape[1] == 0:
        raise ValueError(
            f"class_scores has shape {scores.shape}, must be (n_classes, width) with width >= 1"
        )
    # One number tells that all is well: NaN and infinity survive into a sum of squares. Finite
    # scores may overflow there, so a bad sum is only a reason to look closely. (vdot, because
    # unlike dot and sum it does not warn about the overflow.)
    if not math.isfinite(np.vdot(scores, scores)):
        bad = ~np.isfinite(scores).all(axis=1)
        if bad.any():
            raise ValueError(f"class_scores has NaN or infinite values in {name_rows(bad)}")
    return scores


def checked_codes(
    class_codes: object, shape: tuple[int, ...] | None = None
) -> npt.NDArray[np.bool_]:
    """Return codes as a bool array; numbers are accepted if they are all 0 or 1.

    With ``shape``, which is the shape of the class scores, the codes must have it too.
    """
    codes = as_array("class_codes", class_codes)
    if codes.dtype != _BOOL:
        if codes.dtype.kind not in "fiu":
            raise ValueError(f"class_codes has dtype {codes.dtype}, must be bool")
        as_bool = codes == 1
        if not (as_bool | (codes == 0)).all():
            raise ValueError("class_codes has values other than 0 and 1, must be bool")
        codes = as_bool
    if shape is not None and codes.shape != shape:
        raise ValueError(f"class_codes has shape {codes.shape}, class_scores has shape {shape}")
    return codes


def checked_groups(sibling_groups: object, n_classes: int) -> npt.NDArray[np.int64]:
    """Return group numbers, one per class, as a C-contiguous int64 array, (n_classes,)."""
    groups = as_array("sibling_groups", sibling_groups)
    if groups.ndim != 1:
        raise ValueError(f"sibling_groups has shape {groups.shape}, must be ({n_classes},)")
    if len(groups) != n_classes:
        raise ValueError(
            f"sibling_groups has {len(groups)} entries, class_scores has {n_classes} classes"
        )
    if groups.dtype.kind not in "iu" and len(groups) > 0:  # an empty list has no dtype of its own
        raise ValueError(f"sibling_groups has dtype {groups.dtype}, must be integers")
    # uint64 beyond int64 wraps around, one to one: which numbers are equal does not change.
    return np.ascontiguousarray(groups, dtype=np.int64)


def checked_penalty(name: str, value: object) -> float:
    """Return a penalty as a float: finite and not negative."""
    try:
        penalty = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} must be a number") from None
    except OverflowError:
        penalty = math.inf
    if not 0.0 <= penalty < math.inf:  # false for NaN as well
        raise ValueError(f"{name}={value!r} must be finite and >= 0")
    return penalty + 0.0  # -0.0 becomes 0.0


def checked_count(name: str, value: object) -> int:
    """Return a number of things as an int: an integer that is at least 1."""
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name}={value!r} must be an integer") from None
    if isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be an integer")
    if count < 1:
        raise ValueError(f"{name}={count} must be >= 1")
    return count


def checked_sparsity(sparsity: object, width: int) -> int:
    """Return the number of active slots as an int: from 1 to ``width``."""
    count = checked_count("sparsity", sparsity)
    if count > width:
        raise ValueError(f"sparsity={count} must be <= width={width}")
    return count


def checked_seed(value: object) -> int:
    """Return a seed as an int that is not negative."""
    try:
        seed = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"random_state={value!r} must be an integer") from None
    if seed < 0:
        raise ValueError(f"random_state={seed} must be >= 0")
    return seed


def plain_labels(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return labels as strings or integers if they are such in the form that tables have them in.

    That is strings as objects, and whole numbers as floats; all others are left as they are.
    """
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels):
        return labels.astype(np.str_)
    if labels.dtype.kind == "f" and (np.isfinite(labels) & (labels == np.round(labels))).all():
        return labels.astype(np.int64)
    return labels
