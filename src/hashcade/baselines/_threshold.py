"""Thresholding of embeddings, "Th" in the paper's tables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hashcade.baselines._base import Baseline, Floats, State
from hashcade.codes._shape import CodeShape


class Threshold(Baseline):
    """The ``sparsity`` largest numbers of an embedding name its buckets: one bucket per dimension.

    The binarisation of Agrawal et al. 2014 and Zhai et al. 2017. Nothing is learned.

    Parameters
    ----------
    sparsity
        Buckets per item.

    Examples
    --------
    >>> th = Threshold(sparsity=2).fit([[0.1, 0.9, 0.5]])
    >>> th.transform([[0.1, 0.9, 0.5], [3.0, -1.0, 2.0]]).tolist()
    [[1, 2], [0, 2]]
    """

    def __init__(self, *, sparsity: int = 1) -> None:
        self.sparsity = sparsity

    def _learn(
        self, items: Floats, labels: npt.NDArray[np.int64] | None
    ) -> tuple[CodeShape, State]:
        return CodeShape(width=items.shape[1], depth=1, sparsity=self.sparsity), {}

    def _score(self, items: Floats, state: State) -> Floats:
        return items
