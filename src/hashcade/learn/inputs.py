"""Checks of items and labels given by users. No torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._validate import as_array, checked_labels, name_rows
from hashcade.errors import add_hint


def checked_embeddings(items: object, size: int | None = None) -> npt.NDArray[np.float32]:
    """Return embeddings as float32[n, size], all of them finite."""
    if isinstance(items, np.ndarray) and items.shape == (1, size):  # fast path for one query
        is_plain = items.dtype == np.float32 and items.flags.carray
        if is_plain and math.isfinite(np.vdot(items, items)):
            return items
    if hasattr(items, "nnz") and hasattr(items, "toarray"):
        error = ValueError(f"X is a {type(items).__name__}: sparse data is not supported")
        raise add_hint(error, "use X.toarray()")
    values = as_array("X", items)
    # Some messages repeat those of scikit-learn, which its tools look for.
    if values.dtype.kind not in "fiub":
        what = "Complex data not supported: " if values.dtype.kind == "c" else ""
        raise ValueError(f"{what}X has dtype {values.dtype}, must be real numbers")
    shape = f"X has shape {values.shape}"
    if values.ndim == 4 and size is None:
        must = "without a backbone X must be embeddings of shape (n, size)"
        error = ValueError(f"{shape}, which looks like images: {must}")
        raise add_hint(error, "set backbone='stride' or 'nin' for images")
    if values.ndim != 2:
        one = ". Reshape your data: X.reshape(1, -1) if it is one item" if values.ndim == 1 else ""
        raise ValueError(f"{shape}, must be (n, size){one}")
    n, n_features = values.shape
    if values.size == 0:
        none = f"0 {'feature' if n else 'sample'}(s) (shape={values.shape})"
        raise ValueError(f"X has {none} while a minimum of 1 is required: must be (n, size)")
    if size not in (None, n_features):
        expected = f"but Hasher is expecting {size} features as input"
        raise ValueError(f"X has {n_features} features, {expected}")
    with np.errstate(over="ignore"):  # beyond float32: reported as infinite below
        single = np.require(values, np.float32, ["C", "W"])  # torch warns of a read-only array
    bad = np.asarray(~np.isfinite(single).all(axis=1))
    if bad.any():
        error = ValueError(f"X has NaN or infinite values in {name_rows(bad)}")
        raise add_hint(error, "remove or fix these rows")
    return single


def checked_views(items: object) -> npt.NDArray[np.float32]:
    """Return embeddings for training: float32[n, size], or float32[n, views, size]."""
    values = items if hasattr(items, "toarray") else as_array("X", items)
    if not isinstance(values, np.ndarray) or values.ndim != 3 or 0 in values.shape:
        return checked_embeddings(values)
    return checked_embeddings(values.reshape(len(values), -1)).reshape(values.shape)


def checked_images(items: object, fitted: tuple[int, ...] | None = None) -> npt.NDArray[np.uint8]:
    """Return images as uint8[n, height, width, 3], of the ``fitted`` shape if it is given."""
    values = as_array("X", items)
    expected = "height, width, 3" if fitted is None else ", ".join(map(str, fitted))
    if values.ndim != 4 or values.shape[3] != 3 or 0 in values.shape:
        raise ValueError(f"X has shape {values.shape}, images must be (n, {expected})")
    if fitted is not None and values.shape[1:] != fitted:
        raise ValueError(f"X has shape {values.shape}, the hasher was fitted with (n, {expected})")
    if values.dtype != np.uint8:
        raise ValueError(f"X has dtype {values.dtype}, images must be uint8, from 0 to 255")
    return np.require(values, np.uint8, ["C", "W"])


def checked_classes(labels: object, n_items: int, n_classes: int = 2) -> npt.NDArray[Any]:
    """Return labels as an array of integers or strings, of ``n_classes`` classes or more."""
    if labels is None:
        raise ValueError("Hasher requires y to be passed, but the target y is None")
    values = as_array("y", labels)
    if values.ndim == 2 and values.shape[1] > 1:
        raise ValueError(f"y has shape {values.shape}: several labels per item are not supported")
    if values.ndim == 1 and len(values) != n_items:
        raise ValueError(f"y has {len(values)} labels, X has {n_items} items")
    values = checked_labels("y", values)
    if n_classes > 1 and (values == values[0]).all():
        error = ValueError(f"y has one class only ({values[0].item()!r}), must have at least 2")
        raise add_hint(error, "give items of more classes")
    return values
