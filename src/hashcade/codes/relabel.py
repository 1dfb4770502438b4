"""Labels that follow the codes (the paper's remap)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hashcade.codes.checks import checked_codes


def relabel_by_code(class_codes: ArrayLike) -> NDArray[np.int64]:
    """Number the classes of one level so that equal codes have equal labels.

    Two classes that were given the same code should not be pushed apart at this level: the
    metric loss sees them as one class. The label looks at the level's own code only, not at the
    path above it.

    From codes, bool[n_classes, width], to labels, int64[n_classes]: 0, 1, 2, ... in the order in
    which the codes first appear.

    Examples
    --------
    >>> relabel_by_code([[0, 1, 0], [1, 0, 0], [0, 1, 0]]).tolist()
    [0, 1, 0]
    """
    codes = checked_codes(class_codes)
    if codes.ndim != 2:
        raise ValueError(f"class_codes has shape {codes.shape}, must be (n_classes, width)")
    packed = np.packbits(codes, axis=1)  # (n_classes, bytes per code)
    size = packed.shape[1]
    row_bytes = packed.tobytes()
    # A dict keeps the order of first appearance by itself, and hashing the bytes is quicker
    # than sorting rows for the few hundred classes of a batch.
    label_of: dict[bytes, int] = {}
    labels = np.empty(len(codes), dtype=np.int64)
    for row in range(len(codes)):
        code = row_bytes[row * size : (row + 1) * size]
        labels[row] = label_of.setdefault(code, len(label_of))
    return labels
