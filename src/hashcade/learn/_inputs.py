"""Items and labels as users have them, checked before anything else happens."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hashcade.codes._check import as_array, name_rows, plain_labels


def checked_embeddings(items: object, size: int | None = None) -> npt.NDArray[np.float32]:
    """Return embeddings as float32[n, size], all of them finite."""
    _refuse_sparse(items)
    values = as_array("X", items)
    if values.dtype.kind not in "fiub":
        what = "Complex data not supported: " if values.dtype.kind == "c" else ""
        raise ValueError(f"{what}X has dtype {values.dtype}, must be real numbers")
    if values.ndim == 4 and size is None:
        raise ValueError(
            f"X has shape {values.shape}, which looks like images: without a backbone X must be "
            "embeddings of shape (n, size); for images set backbone='stride' or 'nin'"
        )
    # The words of some messages are those of scikit-learn, which its tools look for.
    if values.ndim == 1:
        raise ValueError(
            f"X has shape {values.shape}, must be (n, size). Reshape your data: X.reshape(1, -1) "
            "if it is one item"
        )
    if values.ndim != 2:
        raise ValueError(f"X has shape {values.shape}, must be (n, size) with n >= 1, size >= 1")
    for count, what in zip(values.shape, ("sample", "feature"), strict=True):
        if count == 0:
            raise ValueError(
                f"X has 0 {what}(s) (shape={values.shape}) while a minimum of 1 is required: "
                "must be (n, size)"
            )
    if size is not None and values.shape[1] != size:
        raise ValueError(
            f"X has {values.shape[1]} features, but Hasher is expecting {size} features as input"
        )
    with np.errstate(over="ignore"):  # beyond float32: named as infinite below
        single = np.require(values, np.float32, ["C", "W"])  # torch warns of a read-only array
    bad = np.asarray(~np.isfinite(single).all(axis=1))
    if bad.any():
        raise ValueError(f"X has NaN or infinite values in {name_rows(bad)}")
    return single


def checked_views(items: object) -> npt.NDArray[np.float32]:
    """Return embeddings to learn from: float32[n, size], or float32[n, views, size]."""
    _refuse_sparse(items)
    values = as_array("X", items)
    if values.ndim != 3 or 0 in values.shape:
        return checked_embeddings(values)
    single = checked_embeddings(values.reshape(len(values), -1))
    return single.reshape(values.shape)


def checked_images(
    items: object, item_shape: tuple[int, ...] | None = None
) -> npt.NDArray[np.uint8]:
    """Return images as uint8[n, height, width, 3]."""
    values = as_array("X", items)
    wanted = "(n, height, width, 3)" if item_shape is None else f"(n, {_commas(item_shape)})"
    if values.ndim != 4 or values.shape[3] != 3 or 0 in values.shape:
        raise ValueError(f"X has shape {values.shape}, images must be {wanted}")
    if item_shape is not None and values.shape[1:] != item_shape:
        raise ValueError(f"X has shape {values.shape}, the hasher was fitted with {wanted}")
    if values.dtype != np.uint8:
        raise ValueError(f"X has dtype {values.dtype}, images must be uint8, from 0 to 255")
    return np.require(values, np.uint8, ["C", "W"])


def checked_labels(labels: object, n_items: int, n_classes: int = 2) -> npt.NDArray[Any]:
    """Return labels as an array of integers or strings, of two classes or more."""
    if labels is None:
        raise ValueError("Hasher requires y to be passed, but the target y is None")
    values = as_array("y", labels)
    if values.ndim == 2 and values.shape[1] > 1 and len(values) == n_items:
        raise ValueError(
            f"y has shape {values.shape}: several labels per item are not supported, must be (n,)"
        )
    if values.ndim != 1:
        raise ValueError(f"y has shape {values.shape}, must be ({n_items},)")
    if len(values) != n_items:
        raise ValueError(f"y has {len(values)} labels, X has {n_items} items")
    values = plain_labels(values)
    if values.dtype.kind not in "iubU":
        raise ValueError(f"y has dtype {values.dtype}, must be integers or strings")
    first = values[0]
    if n_classes > 1 and (values == first).all():
        raise ValueError(f"y has one class only ({first.item()!r}), must have at least 2")
    return values


def checked_device(device: str) -> torch.device:
    """Return the device of a name, which must be one that is here."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device={device!r} cannot be used: {reason}") from None


def data_digest(items: npt.NDArray[Any], labels: npt.NDArray[np.int64]) -> str:
    """A digest that tells data apart."""
    digest = hashlib.sha256(repr((items.shape, str(items.dtype))).encode())
    digest.update(labels.tobytes())
    digest.update(np.ascontiguousarray(items).data)
    return digest.hexdigest()


def _refuse_sparse(items: object) -> None:
    if hasattr(items, "nnz") and hasattr(items, "toarray"):
        raise ValueError(
            f"X is a {type(items).__name__}: sparse data is not supported, use X.toarray()"
        )


def _commas(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
