"""Validation of arguments, shared by all layers.

Each check returns the value in a canonical form, or raises a ``ValueError`` with the actual and
the expected value. An array that already has this form is returned without a copy: callers must
not modify the result. Checks run at every training step and every search, so the common case is a
few calls, and details for messages are only computed after a failure.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.errors import add_hint

_MAX_LISTED = 10


# -- messages ------------------------------------------------------------------------------------


def name_rows(bad: npt.ArrayLike) -> str:
    """The rows where ``bad`` (one bool per row) is true: ``rows 3, 17``, ten at most."""
    return _format_list("row", np.flatnonzero(bad).tolist())


def name_ids(ids: npt.NDArray[Any]) -> str:
    """Ids for a message: ``id 7`` or ``ids 7, 9``, ten at most."""
    return _format_list("id", ids.tolist())


def _format_list(noun: str, values: Sequence[object]) -> str:
    text = ", ".join(map(str, values[:_MAX_LISTED]))
    more = f" and {len(values) - _MAX_LISTED} more" if len(values) > _MAX_LISTED else ""
    return f"{noun if len(values) == 1 else noun + 's'} {text}{more}"


# -- single values -------------------------------------------------------------------------------


def checked_count(name: str, value: object, *, at_least: int = 1) -> int:
    """Return a count as an int, which must be at least ``at_least``."""
    if type(value) is int and value >= at_least:
        return value
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name}={value!r} must be an integer") from None
    if isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be an integer")
    if count < at_least:
        raise ValueError(f"{name}={count} must be >= {at_least}")
    return count


def checked_number(name: str, value: object) -> float:
    """Return a finite, non-negative number as a float."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} must be a number") from None
    except OverflowError:
        number = math.inf
    if not 0.0 <= number < math.inf:  # false for NaN as well
        raise ValueError(f"{name}={value!r} must be finite and >= 0")
    return number + 0.0  # -0.0 becomes 0.0


def checked_seed(value: object) -> int:
    """Return a seed as a non-negative int."""
    return checked_count("random_state", value, at_least=0)


def checked_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return a string that must be one of ``choices``."""
    allowed = tuple(choices)
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")
    return value


# -- arrays --------------------------------------------------------------------------------------


def as_array(name: str, value: object) -> npt.NDArray[Any]:
    """Convert a list, an array, a torch tensor or a column of a data frame to a numpy array."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value
    tensor: Any = value
    if hasattr(tensor, "detach"):  # torch: detach from autograd, move to the CPU
        tensor = tensor.detach().cpu()
        try:
            return np.asarray(tensor)
        except TypeError:  # bfloat16 etc., which numpy does not have
            return np.asarray(tensor.float())
    try:
        array = np.asarray(value)
        is_column = array.dtype == object and array.ndim == 1 and len(array) > 0
        if is_column and isinstance(array[0], (np.ndarray, list)):  # a column of embeddings
            array = np.stack(array.tolist())
        return array
    except ValueError as error:  # rows of different length
        raise ValueError(f"{name} is not a rectangular array: {error}") from None


def checked_vectors(name: str, value: object, dim: int | None = None) -> npt.NDArray[np.float32]:
    """Return finite vectors as a C-contiguous float32[n, dim] array."""
    vectors = as_array(name, value)
    if vectors.dtype.kind not in "fiub":
        raise ValueError(f"{name} has dtype {vectors.dtype}, must be real numbers")
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise ValueError(f"{name} has shape {vectors.shape}, must be (n, dim) with dim >= 1")
    if dim is not None and vectors.shape[1] != dim:
        raise ValueError(f"{name} has dim {vectors.shape[1]}, the index has dim {dim}")
    if vectors.dtype != np.float32 or not vectors.flags.c_contiguous:
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    for start in range(0, len(vectors), 65536):  # in chunks, to limit temporary memory
        chunk = vectors[start : start + 65536]
        if not math.isfinite(np.vdot(chunk, chunk)):  # may also be an overflow
            bad = ~np.isfinite(vectors).all(axis=1)
            if bad.any():
                raise add_hint(
                    ValueError(f"{name} has NaN or values beyond float32 in {name_rows(bad)}"),
                    "remove or fix these rows",
                )
    return vectors


def checked_labels(
    name: str, value: object, n: int | None = None, of: str = "X"
) -> npt.NDArray[Any]:
    """Return labels as a one-dimensional array of integers or strings.

    With ``n`` there must be ``n`` of them, the number of rows of ``of``.
    """
    labels = as_array(name, value)
    if labels.ndim != 1:
        raise ValueError(f"{name} has shape {labels.shape}, must be (n,)")
    if n is not None and len(labels) != n:
        raise ValueError(f"{name} has {len(labels)} entries, {of} has {n} rows")
    labels = plain_labels(labels)
    if labels.dtype.kind not in "iubU" and len(labels) > 0:
        raise ValueError(f"{name} has dtype {labels.dtype}, must be integers or strings")
    return labels


def plain_labels(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert strings stored as objects, and integers stored as floats, as data frames have them.

    All other labels are returned unchanged.
    """
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels):
        return labels.astype(np.str_)
    if labels.dtype.kind == "f" and (np.isfinite(labels) & (labels == np.round(labels))).all():
        return labels.astype(np.int64)
    return labels
