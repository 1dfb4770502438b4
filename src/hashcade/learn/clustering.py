"""Clusters of vectors by Lloyd's algorithm, in torch: the same on every run, no dependency."""

from __future__ import annotations

from operator import itemgetter

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hashcade._validate import checked_count, checked_seed, checked_vectors

_CHUNK = 512  # points at a time: distances stay in the cache
_SOME, _PER_CLUSTER = 16_384, 32  # points among which the first means are drawn
_MOST_DIRECTIONS = 128  # of larger points, those in which they differ most


def kmeans(
    points: npt.ArrayLike | Tensor, n_clusters: int, *,
    random_state: int = 0, n_init: int = 3, max_iter: int = 25,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:  # fmt: skip
    """Cluster points around their means, the best of ``n_init`` starts by k-means++.

    Returns the means, float32[k, size], fewer than ``n_clusters`` if fewer points are different,
    and the cluster of each point, int64[n]; each of 0 to k - 1 occurs.
    """
    vectors = checked_vectors("points", points)
    n_clusters = checked_count("n_clusters", n_clusters)
    if n_clusters > len(vectors):
        raise ValueError(f"n_clusters={n_clusters} must be <= {len(vectors)}, the number of points")
    seed = checked_seed(random_state)
    generator = torch.Generator().manual_seed(seed)
    places = _main_directions(torch.from_numpy(vectors), seed)
    starts = (_spread_out(places, n_clusters, generator) for _ in range(n_init))
    best, _ = min((_lloyd(places, start, max_iter) for start in starts), key=itemgetter(1))
    labels = np.unique(best.numpy(), return_inverse=True)[1].astype(np.int64)
    sums = np.zeros((labels.max() + 1, vectors.shape[1]))
    np.add.at(sums, labels, vectors)
    return (sums / np.bincount(labels)[:, None]).astype(np.float32), labels


def _main_directions(points: Tensor, seed: int) -> Tensor:
    """Centred points in the directions in which they differ most, float[n, at most 128]."""
    points = points - points.mean(dim=0)
    if min(points.shape) <= _MOST_DIRECTIONS:
        return points
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _, _, directions = torch.svd_lowrank(points, q=_MOST_DIRECTIONS)
    return points @ directions


def _spread_out(points: Tensor, n_clusters: int, generator: torch.Generator) -> Tensor:
    """k-means++: points drawn by the squared distance to those drawn so far.

    It looks at all points for each of them, so if there are many, it looks at some.
    """
    if len(points) > (n_some := max(_SOME, _PER_CLUSTER * n_clusters)):
        points = points[torch.randperm(len(points), generator=generator)[:n_some]]
    drawn = [int(torch.randint(len(points), (1,), generator=generator))]
    gaps = torch.full((len(points),), torch.inf)
    for _ in range(n_clusters - 1):
        newest = points[drawn[-1:]]  # not as a product of matrices: 0 for the point itself
        apart = torch.cdist(newest, points, compute_mode="donot_use_mm_for_euclid_dist")[0]
        gaps = torch.minimum(gaps, apart.square_())
        reach = gaps.double().cumsum(dim=0)
        # A number below the total falls into one point's share; if all shares are 0, anywhere.
        at = torch.rand(1, generator=generator, dtype=torch.float64) * reach[-1]
        drawn.append(min(int(torch.searchsorted(reach, at, right=True)), len(points) - 1))
    return points[torch.tensor(drawn)].clone()


def _lloyd(points: Tensor, centroids: Tensor, max_iter: int) -> tuple[Tensor, float]:
    """Labels after some rounds from given centroids, and the sum of squared distances."""
    labels, gaps = _nearest(points, centroids)
    for _ in range(max_iter):
        sizes = torch.bincount(labels, minlength=len(centroids))
        sums = torch.zeros_like(centroids).index_add_(0, labels, points)
        centroids = sums / sizes.clamp(min=1)[:, None]
        empty = (sizes == 0).nonzero()[:, 0]
        if len(empty):  # a cluster that lost all its points restarts where points lie far out
            centroids[empty] = points[gaps.topk(len(empty)).indices]
        before = labels
        labels, gaps = _nearest(points, centroids)
        if torch.equal(labels, before):
            break
    return labels, float(gaps.sum(dtype=torch.float64))


def _nearest(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centroid of each point and the squared distance to it."""
    squares = centroids.square().sum(dim=1)
    labels, gaps = [], []
    for at in range(0, len(points), _CHUNK):
        part = points[at : at + _CHUNK]
        least = torch.addmm(squares, part, centroids.T, alpha=-2.0).min(dim=1)
        labels.append(least.indices)
        gaps.append((least.values + part.square().sum(dim=1)).clamp(min=0.0))
    return torch.cat(labels), torch.cat(gaps)
