"""Labels as users have them, turned into class numbers from 0 to n_classes - 1."""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hashcade._validate import as_array
from hashcade.errors import DataError

Label: TypeAlias = int | str

_ONE_EACH = "must be one integer or one string per item"


def encode_labels(labels: object) -> tuple[NDArray[np.int64], tuple[Label, ...]]:
    """Number the classes: the smallest label becomes class 0, the next one class 1, and so on.

    Labels are integers of any size and sign, or strings; a list, an array, a tensor or a column.
    Not both kinds in one set: it would be unclear whether ``1`` and ``"1"`` are the same class.
    Returned are class numbers, int64[n], and the sorted distinct labels:
    ``class_names[class_numbers[i]] == labels[i]``.

    Examples
    --------
    >>> class_numbers, class_names = encode_labels(["dog", "cat", "dog"])
    >>> class_numbers.tolist(), class_names
    ([1, 0, 1], ('cat', 'dog'))
    """
    values: Any = labels
    if hasattr(values, "detach"):  # a tensor
        values = as_array("labels", values)
    elif hasattr(values, "to_numpy"):  # a column of a table
        values = values.to_numpy()
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise DataError(f"labels is {type(values).__name__}, {_ONE_EACH}")
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise DataError(f"labels has shape {values.shape}, must be (n,): {_ONE_EACH}")
        if values.dtype.kind == "f":
            raise DataError(f"labels has dtype {values.dtype}, {_ONE_EACH}")
        if values.dtype.kind in "iub" and len(values) > 0:
            names, numbers = np.unique(values, return_inverse=True)
            return numbers.astype(np.int64), tuple(int(name) for name in names.tolist())
    # Strings are compared as Python has them: numpy drops trailing NULs.
    plain = [_plain_label(row, label) for row, label in enumerate(values)]
    if not plain:
        raise DataError("labels is empty, must have at least one")
    first_rows = {type(label): row for row, label in reversed(list(enumerate(plain)))}
    if len(first_rows) > 1:
        raise DataError(
            f"labels has an integer in row {first_rows[int]} and a string in row "
            f"{first_rows[str]}, must be all integers or all strings"
        )
    class_names: list[Any] = sorted(set(plain))
    number = {name: class_number for class_number, name in enumerate(class_names)}
    return np.array([number[label] for label in plain], np.int64), tuple(class_names)


def _plain_label(row: int, label: object) -> Label:
    try:
        if isinstance(label, (str, bytes)):
            return label.decode() if isinstance(label, bytes) else str(label)
        return operator.index(label)  # type: ignore[arg-type]
    except (TypeError, UnicodeDecodeError):
        raise DataError(
            f"labels has {label!r} ({type(label).__name__}) in row {row}, {_ONE_EACH}"
        ) from None
