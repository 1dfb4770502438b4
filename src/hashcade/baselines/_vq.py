"""Vector quantisation by k-means, "VQ" in the paper's tables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hashcade._extras import require_extra
from hashcade.baselines._base import Baseline, Floats, State
from hashcade.codes._check import checked_count, checked_seed
from hashcade.codes._shape import CodeShape


class VQ(Baseline):
    """The ``sparsity`` nearest centroids of k-means are the buckets of an item.

    What it is fitted on makes the difference between VQ-train and VQ-test; labels are not used.

    Parameters
    ----------
    n_centroids
        Buckets. The paper has as many as the learned table has outputs, ``width · depth``.
    sparsity
        Buckets per item.
    max_iter
        Most rounds of Lloyd's algorithm.
    n_init
        Starts (k-means++), of which the best is kept.
    random_state
        Seed.

    Attributes
    ----------
    centroids_ : float32[n_centroids, size]

    Examples
    --------
    >>> vq = VQ(n_centroids=2).fit([[0.0], [0.2], [5.0], [5.2]])
    >>> sorted(round(float(c), 3) for c in vq.centroids_.ravel())
    [0.1, 5.1]
    """

    def __init__(
        self,
        *,
        n_centroids: int = 64,
        sparsity: int = 1,
        max_iter: int = 50,
        n_init: int = 1,
        random_state: int = 0,
    ) -> None:
        self.n_centroids = n_centroids
        self.sparsity = sparsity
        self.max_iter = max_iter
        self.n_init = n_init
        self.random_state = random_state

    @property
    def centroids_(self) -> Floats:
        """The centroids, float32[n_centroids, size]."""
        return self._state["centroids"]

    def _learn(
        self, items: Floats, labels: npt.NDArray[np.int64] | None
    ) -> tuple[CodeShape, State]:
        shape = CodeShape(width=self.n_centroids, depth=1, sparsity=self.sparsity)
        if len(items) < shape.width:
            raise ValueError(f"n_centroids={shape.width} must be <= {len(items)}, the items in X")
        cluster = require_extra("sklearn.cluster", "baselines")
        threads = require_extra("threadpoolctl", "baselines")  # comes with scikit-learn
        kmeans = cluster.KMeans(
            shape.width,
            n_init=checked_count("n_init", self.n_init),
            max_iter=checked_count("max_iter", self.max_iter),
            random_state=checked_seed(self.random_state),
        )
        # One thread: sums in one order, so equal seeds give equal centroids on busy machines too.
        with threads.threadpool_limits(limits=1):
            kmeans.fit(items)
        return shape, {"centroids": np.ascontiguousarray(kmeans.cluster_centers_, np.float32)}

    def _score(self, items: Floats, state: State) -> Floats:
        # Minus the squared distances. Around the centroids' mean the products lose little.
        centre = state["centroids"].mean(axis=0)
        centroids, moved = state["centroids"] - centre, items - centre
        scores = 2.0 * (moved @ centroids.T)  # (n, n_centroids)
        scores -= np.einsum("ij,ij->i", centroids, centroids)
        scores -= np.einsum("ij,ij->i", moved, moved)[:, None]
        return np.asarray(np.minimum(scores, 0.0, out=scores), dtype=np.float32)
