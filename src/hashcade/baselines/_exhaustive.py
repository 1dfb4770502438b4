"""Exhaustive search, "Metric" in the paper's tables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hashcade.baselines._base import Baseline, Floats, State
from hashcade.codes._shape import CodeShape


class Exhaustive(Baseline):
    """One bucket that holds everything: a query looks at all items.

    Examples
    --------
    >>> metric = Exhaustive().fit([[0.0, 1.0], [1.0, 0.0]])
    >>> metric.transform([[0.5, 0.5]]).tolist(), metric.shape_.n_buckets
    ([[0]], 1)
    """

    def __init__(self) -> None:
        pass

    def _learn(
        self, items: Floats, labels: npt.NDArray[np.int64] | None
    ) -> tuple[CodeShape, State]:
        return CodeShape(width=1, depth=1), {"score": np.zeros(1, dtype=np.float32)}

    def _score(self, items: Floats, state: State) -> Floats:
        return np.broadcast_to(state["score"], (len(items), 1)).copy()
