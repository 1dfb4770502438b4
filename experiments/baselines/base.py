"""What all baselines share, and the arithmetic of binary codes.

A baseline is a table of one level: a slot per bucket, and a score per slot that says how well the
slot fits. The ``sparsity`` best slots are the buckets of an item, stored or queried, and a query
that needs more candidates continues in the order of the scores.
"""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from hashcade.codes import CodeShape
from hashcade.errors import NotFittedError
from hashcade.index import Encoded
from hashcade.learn import checked_classes, checked_embeddings

MAX_BITS = 12  # an item has a score for each of the 2 ** n_bits codes

Floats = npt.NDArray[np.float32]
State = dict[str, Floats]


class Baseline:
    """Base class. A baseline is a dataclass of settings that implements ``_learn`` and ``_score``.

    Attributes
    ----------
    shape_ : CodeShape
        The shape of the table: one level.
    state_ : dict of float32 arrays
        What was learned.
    """

    needs_labels: ClassVar[bool] = False
    shape_: CodeShape
    state_: State
    _size: int

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None) -> Self:
        """Learn from embeddings, float[n, size], and classes if the method is supervised."""
        items = checked_embeddings(X)
        labels = None
        if self.needs_labels:
            if y is None:
                raise ValueError(f"y is None: {type(self).__name__} learns from labels")
            labels = np.unique(checked_classes(y, len(items)), return_inverse=True)[1]
            labels = labels.astype(np.int64)
        self.shape_, self.state_ = self._learn(items, labels)
        self._size = items.shape[1]
        return self

    def encode(self, X: npt.ArrayLike) -> Encoded:
        """The given vectors, with their buckets and slot scores."""
        if not hasattr(self, "shape_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted", hint="call fit")
        items = checked_embeddings(X, self._size)
        scores = self._score(items)[:, None]  # (n, 1, width)
        return Encoded(items, self.shape_.scores_to_bucket_ids(scores), scores, by_path=True)

    def _learn(
        self, items: Floats, labels: npt.NDArray[np.int64] | None
    ) -> tuple[CodeShape, State]:
        raise NotImplementedError

    def _score(self, items: Floats) -> Floats:
        """Scores of the slots, float32[n, width]: the higher, the better the slot fits."""
        raise NotImplementedError


# -- binary codes: a bucket for each of the 2 ** n_bits codes ------------------------------------


def bit_shape(n_bits: int, sparsity: int) -> CodeShape:
    """One level with a slot for each code.

    A tree with a level per bit would have the same buckets, but its ``sparsity`` best could differ
    in the last bit alone, and filling would flip late bits first however certain they are.
    """
    if not isinstance(n_bits, int) or not 1 <= n_bits <= MAX_BITS:
        raise ValueError(f"n_bits={n_bits!r} must be an integer from 1 to {MAX_BITS}")
    return CodeShape(width=2**n_bits, depth=1, sparsity=sparsity)


def code_scores(certainty: Floats) -> Floats:
    """Score every code, float32[n, 2 ** n_bits], by how certain bits are, float32[n, n_bits].

    A bit is 1 where its certainty is positive, and flipping it costs the absolute value. The score
    of a code is minus the cost of the bits in which it differs from the item's code (up to
    rounding): the item's code 0, then the codes in the order of multi-probe search (Lv et al.
    2007). The first bit is the most significant of the bucket id.
    """
    n_bits = certainty.shape[1]
    bits = (np.arange(2**n_bits)[:, None] >> np.arange(n_bits - 1, -1, -1)) & 1
    gains = np.minimum(certainty, 0.0) @ bits.T.astype(np.float32)  # a 1 where 0 was better
    gains -= np.maximum(certainty, 0.0) @ (1 - bits).T.astype(np.float32)  # a 0 where 1 was
    return np.asarray(gains, dtype=np.float32)
