"""Locality-sensitive hashing by random hyperplanes, "LSH" in the paper's tables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hashcade.baselines._base import Baseline, Floats, State
from hashcade.baselines._bits import bit_shape, code_scores
from hashcade.codes._check import checked_seed
from hashcade.codes._shape import CodeShape


class LSH(Baseline):
    """Random hyperplanes: on which side of each an item lies makes a code, the code is its bucket.

    With ``sparsity`` above 1 an item lies in the buckets of the codes that are reached by the
    cheapest flips of bits, where a flip costs the squared distance to its hyperplane (multi-probe
    LSH, Lv et al. 2007). The paper compares LSH at ``sparsity=1`` alone.

    Parameters
    ----------
    n_bits
        Hyperplanes; there are ``2 ** n_bits`` buckets, ``width · depth`` in the paper.
    sparsity
        Buckets per item.
    centre
        Whether hyperplanes go through the mean of the items (or else through the origin). Sides
        are then of more equal size, which favours this baseline.
    random_state
        Seed.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(100, 8))
    >>> lsh = LSH(n_bits=3).fit(X)
    >>> lsh.shape_.n_buckets, lsh.transform(X).shape
    (8, (100, 1))
    """

    def __init__(
        self, *, n_bits: int = 6, sparsity: int = 1, centre: bool = True, random_state: int = 0
    ) -> None:
        self.n_bits = n_bits
        self.sparsity = sparsity
        self.centre = centre
        self.random_state = random_state

    def _learn(
        self, items: Floats, labels: npt.NDArray[np.int64] | None
    ) -> tuple[CodeShape, State]:
        shape = bit_shape(self.n_bits, self.sparsity)
        rng = np.random.default_rng(checked_seed(self.random_state))
        normals = rng.standard_normal((items.shape[1], self.n_bits))
        normals /= np.linalg.norm(normals, axis=0)  # so that products are distances
        centre = items.mean(axis=0, dtype=np.float64) if self.centre else np.zeros(items.shape[1])
        state = {"normals": normals.astype(np.float32), "centre": centre.astype(np.float32)}
        return shape, state

    def _score(self, items: Floats, state: State) -> Floats:
        distances = (items - state["centre"]) @ state["normals"]  # (n, n_bits)
        return code_scores(np.asarray(distances * np.abs(distances), dtype=np.float32))
