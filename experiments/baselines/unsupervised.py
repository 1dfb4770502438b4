"""Baselines that need no labels: exhaustive search, LSH, thresholding and vector quantization."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.baselines.base import Baseline, Floats, State, bit_shape, code_scores
from hashcade.codes import CodeShape

Labels = npt.NDArray[np.int64] | None


@dataclass(kw_only=True, eq=False)
class Exhaustive(Baseline):
    """One bucket that holds everything: "Metric" in the paper's tables.

    Examples
    --------
    >>> metric = Exhaustive().fit([[0.0, 1.0], [1.0, 0.0]])
    >>> metric.encode([[0.5, 0.5]]).bucket_ids.tolist(), metric.shape_.n_buckets
    ([[0]], 1)
    """

    def _learn(self, items: Floats, labels: Labels) -> tuple[CodeShape, State]:
        return CodeShape(width=1, depth=1), {}

    def _score(self, items: Floats) -> Floats:
        return np.zeros((len(items), 1), dtype=np.float32)


@dataclass(kw_only=True, eq=False)
class LSH(Baseline):
    """Random hyperplanes: on which side of each an item lies is a bit of its code and bucket.

    With ``sparsity`` above 1 an item is in the buckets of the codes with the cheapest flips of
    bits, where a flip costs the squared distance to its hyperplane (multi-probe LSH, Lv et al.
    2007). The paper compares LSH at ``sparsity=1`` alone.

    Parameters
    ----------
    n_bits
        Hyperplanes; there are ``2 ** n_bits`` buckets, ``width · depth`` in the paper.
    centre
        Whether hyperplanes go through the mean of the items, or else through the origin. The sides
        are then of more equal size, which favours this baseline.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(100, 8))
    >>> lsh = LSH(n_bits=3).fit(X)
    >>> lsh.shape_.n_buckets, lsh.encode(X).bucket_ids.shape
    (8, (100, 1))
    """

    n_bits: int = 6
    sparsity: int = 1
    centre: bool = True
    random_state: int = 0

    def _learn(self, items: Floats, labels: Labels) -> tuple[CodeShape, State]:
        shape = bit_shape(self.n_bits, self.sparsity)
        rng = np.random.default_rng(self.random_state)
        normals = rng.standard_normal((items.shape[1], self.n_bits))
        normals /= np.linalg.norm(normals, axis=0)  # so that products are distances
        centre = items.mean(axis=0, dtype=np.float64) if self.centre else np.zeros(items.shape[1])
        return shape, {"normals": normals.astype(np.float32), "centre": centre.astype(np.float32)}

    def _score(self, items: Floats) -> Floats:
        distances = (items - self.state_["centre"]) @ self.state_["normals"]  # (n, n_bits)
        return code_scores(np.asarray(distances * np.abs(distances), dtype=np.float32))


@dataclass(kw_only=True, eq=False)
class Threshold(Baseline):
    """The ``sparsity`` largest entries of an embedding name its buckets: a bucket per dimension.

    The binarization of Agrawal et al. 2014 and Zhai et al. 2017, "Th" in the paper's tables.
    Nothing is learned.

    Examples
    --------
    >>> th = Threshold(sparsity=2).fit([[0.1, 0.9, 0.5]])
    >>> th.encode([[0.1, 0.9, 0.5], [3.0, -1.0, 2.0]]).bucket_ids.tolist()
    [[1, 2], [0, 2]]
    """

    sparsity: int = 1

    def _learn(self, items: Floats, labels: Labels) -> tuple[CodeShape, State]:
        return CodeShape(width=items.shape[1], depth=1, sparsity=self.sparsity), {}

    def _score(self, items: Floats) -> Floats:
        return items


@dataclass(kw_only=True, eq=False)
class VQ(Baseline):
    """The ``sparsity`` nearest centroids of k-means (scikit-learn's) are the buckets of an item.

    What it is fitted on makes the difference between VQ-train and VQ-test; labels are not used.

    Parameters
    ----------
    n_centroids
        Buckets. The paper has as many as the learned table has outputs, ``width · depth``.
    max_iter
        Most rounds of Lloyd's algorithm.
    n_init
        Starts (k-means++), of which the best is taken.

    Examples
    --------
    >>> vq = VQ(n_centroids=2).fit([[0.0], [0.2], [5.0], [5.2]])
    >>> sorted(round(float(c), 3) for c in vq.state_["centroids"].ravel())
    [0.1, 5.1]
    """

    n_centroids: int = 64
    sparsity: int = 1
    max_iter: int = 50
    n_init: int = 1
    random_state: int = 0

    def _learn(self, items: Floats, labels: Labels) -> tuple[CodeShape, State]:
        from sklearn.cluster import KMeans
        from threadpoolctl import threadpool_limits

        shape = CodeShape(width=self.n_centroids, depth=1, sparsity=self.sparsity)
        if len(items) < shape.width:
            raise ValueError(f"n_centroids={shape.width} must be <= {len(items)}, the items in X")
        kmeans = KMeans(
            shape.width,
            n_init=self.n_init,
            max_iter=self.max_iter,
            random_state=self.random_state,
        )
        # One thread: sums in one order, so equal seeds give equal centroids on busy machines too.
        with threadpool_limits(limits=1):
            kmeans.fit(items)
        return shape, {"centroids": np.ascontiguousarray(kmeans.cluster_centers_, np.float32)}

    def _score(self, items: Floats) -> Floats:
        # Minus the squared distances. Around the centroids' mean the products lose little.
        centre = self.state_["centroids"].mean(axis=0)
        centroids, moved = self.state_["centroids"] - centre, items - centre
        scores = 2.0 * (moved @ centroids.T)  # (n, n_centroids)
        scores -= np.einsum("ij,ij->i", centroids, centroids)
        scores -= np.einsum("ij,ij->i", moved, moved)[:, None]
        return np.asarray(np.minimum(scores, 0.0, out=scores), dtype=np.float32)
