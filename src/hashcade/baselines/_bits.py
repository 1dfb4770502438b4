"""Tables of binary codes: a bucket for each of the ``2 ** n_bits`` codes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hashcade.baselines._base import Floats
from hashcade.codes._check import checked_count
from hashcade.codes._shape import CodeShape

MAX_BITS = 20


def bit_shape(n_bits: int, sparsity: int) -> CodeShape:
    """One level with a slot for each code.

    A tree with a level per bit would have the same buckets, but its ``sparsity`` best could differ
    in the last bit alone, and filling would flip late bits first however certain they are.
    """
    count = checked_count("n_bits", n_bits)
    if count > MAX_BITS:
        raise ValueError(f"n_bits={count} must be <= {MAX_BITS}")
    return CodeShape(width=2**count, depth=1, sparsity=sparsity)


def code_scores(certainty: Floats) -> Floats:
    """Score every code, float32[n, 2 ** n_bits], by how certain bits are, float32[n, n_bits].

    A bit is 1 where its certainty is positive, and flipping it costs the absolute value. The score
    of a code is minus the cost of the bits in which it differs from the item's own code (up to
    rounding): own code 0, then the codes in the order of multi-probe search (Lv et al. 2007).
    The first bit is the most significant of the bucket id.
    """
    n_bits = certainty.shape[1]
    bits = (np.arange(2**n_bits)[:, None] >> np.arange(n_bits - 1, -1, -1)) & 1
    gains = np.minimum(certainty, 0.0) @ bits.T.astype(np.float32)  # a 1 where 0 was better
    gains -= np.maximum(certainty, 0.0) @ (1 - bits).T.astype(np.float32)  # a 0 where 1 was
    result: npt.NDArray[np.float32] = gains
    return result
