"""Codes of all levels, one after the other, and labels by code."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hashcade._validate import as_array
from hashcade.codes.checks import checked_codes
from hashcade.codes.shape import CodeShape
from hashcade.codes.solve import solve_level


def solve_cascade(
    class_scores: ArrayLike, shape: CodeShape, *, sibling_penalty: float, collision_penalty: float
) -> NDArray[np.bool_]:
    """Codes of all levels, bool[depth, n_classes, width]: each level optimal, given those above.

    Scores, float[depth, n_classes, width], are class means of the activations. The penalties, α and
    β, are per ordered pair, on every level the same. Levels above the last have one slot per class.
    Siblings are classes that share their slots on all levels above; if they also share a slot on
    this level, they pay the sibling penalty. The first level has no siblings. Greedy, as in the
    paper: each level is solved exactly, but all levels together need not be optimal.

    Two classes share each slot of the first level, and are separated on the second:

    >>> from hashcade import CodeShape, solve_cascade
    >>> scores = [[[0.9, 0.1], [0.8, 0.3], [0.2, 0.7], [0.1, 0.6]],
    ...           [[0.5, 0.4], [0.6, 0.1], [0.3, 0.4], [0.8, 0.2]]]
    >>> shape = CodeShape(width=2, depth=2)
    >>> codes = solve_cascade(scores, shape, sibling_penalty=1.0, collision_penalty=0.05)
    >>> shape.codes_to_bucket_ids(codes).ravel()
    array([1, 0, 3, 2])
    """
    scores = as_array("class_scores", class_scores)
    if scores.ndim != 3 or scores.shape[0] != shape.depth or scores.shape[2] != shape.width:
        allowed = f"(depth, n_classes, width) with depth={shape.depth} and width={shape.width}"
        raise ValueError(f"class_scores has shape {scores.shape}, must be {allowed}")
    codes = np.empty(scores.shape, np.bool_)
    path = np.zeros(scores.shape[1], np.int64)  # equal for classes with the same slots so far
    for level in range(shape.depth):
        is_last = level == shape.depth - 1
        try:
            codes[level] = solve_level(
                scores[level],
                sparsity=shape.sparsity if is_last else 1,
                sibling_groups=None if level == 0 else path,
                sibling_penalty=sibling_penalty,
                collision_penalty=collision_penalty,
            )
        except ValueError as error:
            raise ValueError(f"level {level + 1}: {error}") from None
        if not is_last:
            path = path * shape.width + codes[level].argmax(axis=1)  # < n_buckets, fits int64
    return codes


def relabel_by_code(class_codes: ArrayLike) -> NDArray[np.int64]:
    """Number the classes of one level so that equal codes have equal labels (the paper's remap).

    The metric loss sees classes with one code, bool[n_classes, width], as one class and does not
    push them apart at this level. Labels 0, 1, 2, ... are in the order in which codes appear.

    >>> relabel_by_code([[0, 1, 0], [1, 0, 0], [0, 1, 0]]).tolist()
    [0, 1, 0]
    """
    codes = checked_codes(class_codes)
    if codes.ndim != 2:
        raise ValueError(f"class_codes has shape {codes.shape}, must be (n_classes, width)")
    # For a few hundred classes hashing bytes is faster than sorting rows.
    label_of: dict[bytes, int] = {}
    rows = (row.tobytes() for row in np.packbits(codes, axis=1))
    return np.array([label_of.setdefault(code, len(label_of)) for code in rows], np.int64)
