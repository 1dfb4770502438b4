"""Labels: whatever a user has, turned into class numbers 0..n_classes-1."""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hashcade.errors import DataError

Label: TypeAlias = int | str

_ONE_EACH = "one integer or one string per item"


def encode_labels(labels: object) -> tuple[npt.NDArray[np.int64], tuple[Label, ...]]:
    """Number the classes: the smallest label becomes class 0, the next one class 1, and so on.

    Parameters
    ----------
    labels
        One label per item: integers of any size and sign, or strings; a list, an array or a
        tensor. Not both kinds in one set, because nobody could say whether ``1`` and ``"1"``
        are then the same class.

    Returns
    -------
    class_numbers : int64[n]
        From 0 to ``len(class_names) - 1``.
    class_names : tuple of int or str
        The labels as they were given, sorted, each once:
        ``class_names[class_numbers[i]] == labels[i]``.

    Raises
    ------
    DataError
        If there are no labels, if one is missing (``None``), if an item has several, or if they
        are neither integers nor strings.

    Examples
    --------
    >>> class_numbers, class_names = encode_labels(["dog", "cat", "dog"])
    >>> class_numbers.tolist(), class_names
    ([1, 0, 1], ('cat', 'dog'))
    >>> encode_labels([700, -3, 700])[1]
    (-3, 700)
    """
    tensor: Any = labels
    if hasattr(tensor, "detach"):  # a torch tensor, taken without importing torch
        labels = tensor.detach().cpu().numpy()
    elif hasattr(tensor, "to_numpy"):  # a column of a table
        labels = tensor.to_numpy()
    if isinstance(labels, (str, bytes)) or not hasattr(labels, "__len__"):
        raise DataError(f"labels is {type(labels).__name__}, must be {_ONE_EACH}")
    if isinstance(labels, np.ndarray):
        if labels.ndim != 1:
            raise DataError(
                f"labels has shape {labels.shape}, must be (n,): {_ONE_EACH} "
                "(several labels per item, one-hot rows among them, are not supported)"
            )
        if labels.dtype.kind in "iub" and len(labels) > 0:
            names, numbers = np.unique(labels, return_inverse=True)
            return numbers.astype(np.int64), tuple(int(name) for name in names.tolist())
        if labels.dtype.kind == "f":
            raise DataError(f"labels has dtype {labels.dtype}, must be {_ONE_EACH}")
        labels = labels.tolist()
    return _encode_objects(list(labels))  # type: ignore[call-overload]


def _encode_objects(labels: list[object]) -> tuple[npt.NDArray[np.int64], tuple[Label, ...]]:
    """Encode Python objects. Arrays of strings come here too: numpy drops trailing NULs."""
    if not labels:
        raise DataError("labels is empty, must have at least one")
    plain = [_plain(row, label) for row, label in enumerate(labels)]
    kinds = {type(label): row for row, label in reversed(list(enumerate(plain)))}
    if len(kinds) > 1:
        raise DataError(
            f"labels has an integer in row {kinds[int]} and a string in row {kinds[str]}, "
            "must be all integers or all strings"
        )
    names: list[Any] = sorted(set(plain))
    number = {name: class_number for class_number, name in enumerate(names)}
    return np.fromiter((number[label] for label in plain), np.int64, len(plain)), tuple(names)


def _plain(row: int, label: object) -> Label:
    """Return one label as a plain int or str."""
    if isinstance(label, str):
        return str(label)
    if isinstance(label, bytes):
        try:
            return label.decode()
        except UnicodeDecodeError:
            raise DataError(f"labels has bytes in row {row} that are not UTF-8") from None
    if label is None:
        raise DataError(f"labels has no value in row {row}, must be {_ONE_EACH}")
    if isinstance(label, (list, tuple, set, frozenset, dict, np.ndarray)):
        raise DataError(
            f"labels has several labels in row {row} ({type(label).__name__}), must be "
            f"{_ONE_EACH}: several labels per item are not supported"
        )
    try:
        return operator.index(label)  # type: ignore[arg-type]
    except TypeError:
        raise DataError(
            f"labels has {label!r} ({type(label).__name__}) in row {row}, must be {_ONE_EACH}"
        ) from None
