"""Checks of arguments, shared by all layers.

Each check returns the value in the one form that the code behind it works with, or raises a
``ValueError`` that gives both sides. An array that already has this form is returned as it is,
not copied: callers must not write into the result. Checks run at every training
step and every search, so the good path is a handful of calls, and what it takes to write a
helpful message is spent only once something is wrong.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.errors import add_hint

_MAX_NAMED = 10


# -- phrases of messages -------------------------------------------------------------------------


def name_rows(bad: npt.ArrayLike) -> str:
    """Name the rows where ``bad`` (one bool per row) is true: ``rows 3, 17``, ten at most."""
    return _named("row", np.flatnonzero(bad).tolist())


def name_ids(ids: npt.NDArray[Any]) -> str:
    """Name ids: ``id 7`` or ``ids 7, 9``, ten at most."""
    return _named("id", ids.tolist())


def _named(noun: str, values: Sequence[object]) -> str:
    listed = ", ".join(map(str, values[:_MAX_NAMED]))
    more = f" and {len(values) - _MAX_NAMED} more" if len(values) > _MAX_NAMED else ""
    return f"{noun if len(values) == 1 else noun + 's'} {listed}{more}"


# -- single values -------------------------------------------------------------------------------


def checked_count(name: str, value: object, *, at_least: int = 1) -> int:
    """Return a number of things as an int: an integer that is at least ``at_least``."""
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
    """Return a penalty, a rate or a share as a float: finite and not negative."""
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
    """Return a seed as an int that is not negative."""
    return checked_count("random_state", value, at_least=0)


def checked_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return a string that must be one of ``choices``."""
    allowed = tuple(choices)
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")
    return value


# -- arrays --------------------------------------------------------------------------------------


def as_array(name: str, value: object) -> npt.NDArray[Any]:
    """Take a list, an array, a torch tensor or a column of a table as a numpy array."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value
    tensor: Any = value
    if hasattr(tensor, "detach"):  # a tensor: out of autograd, and into main memory
        tensor = tensor.detach().cpu()
        try:
            return np.asarray(tensor)
        except TypeError:  # bfloat16 and its like, which numpy does not have
            return np.asarray(tensor.float())
    try:
        array = np.asarray(value)
        column = array.dtype == object and array.ndim == 1 and len(array) > 0
        if column and isinstance(array[0], (np.ndarray, list)):  # of embeddings
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
        with np.errstate(over="ignore", invalid="ignore"):  # named as infinite below
            vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    for at in range(0, len(vectors), 65536):  # in chunks: the test needs memory of its own
        chunk = vectors[at : at + 65536]
        if not math.isfinite(np.vdot(chunk, chunk)):  # may overflow: a reason to look closely
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

    With ``n`` there must be so many of them, as many as ``of`` has rows.
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
    """Return labels as strings or integers if they are such in the form that tables have them in.

    That is strings as objects, and whole numbers as floats; all others are left as they are.
    """
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels):
        return labels.astype(np.str_)
    if labels.dtype.kind == "f" and (np.isfinite(labels) & (labels == np.round(labels))).all():
        return labels.astype(np.int64)
    return labels
