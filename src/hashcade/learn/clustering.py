"""K-means clustering by Lloyd's algorithm, in torch: reproducible, and no dependency."""

from __future__ import annotations

from operator import itemgetter

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hashcade._validate import checked_count, checked_seed, checked_vectors

_CHUNK = 512  # points at a time: distances stay in the cache
_SAMPLE, _SAMPLE_PER_CLUSTER = 16_384, 32  # points from which initial centroids are drawn
_MAX_DIRECTIONS = 128  # principal directions of larger points


def kmeans(
    points: npt.ArrayLike | Tensor, n_clusters: int, *,
    random_state: int = 0, n_init: int = 3, max_iter: int = 25,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:  # fmt: skip
    """Cluster points by k-means, the best of ``n_init`` initializations by k-means++.

    Returns the centroids, float32[k, size], fewer than ``n_clusters`` if fewer points are distinct,
    and the cluster of each point, int64[n]; no cluster is empty.
    """
    vectors = checked_vectors("points", points)
    n_clusters = checked_count("n_clusters", n_clusters)
    if n_clusters > len(vectors):
        raise ValueError(f"n_clusters={n_clusters} must be <= {len(vectors)}, the number of points")
    seed = checked_seed(random_state)
    generator = torch.Generator().manual_seed(seed)
    projected = _main_directions(torch.from_numpy(vectors), seed)
    starts = (_kmeans_plus_plus(projected, n_clusters, generator) for _ in range(n_init))
    best, _ = min((_lloyd(projected, start, max_iter) for start in starts), key=itemgetter(1))
    labels = np.unique(best.numpy(), return_inverse=True)[1].astype(np.int64)
    sums = np.zeros((labels.max() + 1, vectors.shape[1]))
    np.add.at(sums, labels, vectors)
    return (sums / np.bincount(labels)[:, None]).astype(np.float32), labels


def _main_directions(points: Tensor, seed: int) -> Tensor:
    """Centred points, projected to their principal directions, float[n, at most 128]."""
    points = points - points.mean(dim=0)
    if min(points.shape) <= _MAX_DIRECTIONS:
        return points
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _, _, directions = torch.svd_lowrank(points, q=_MAX_DIRECTIONS)
    return points @ directions


def _kmeans_plus_plus(points: Tensor, n_clusters: int, generator: torch.Generator) -> Tensor:
    """Initial centroids: points drawn with probability by squared distance to those drawn so far.

    Each draw computes the distances of all points, so if there are many, a sample is used.
    """
    if len(points) > (n_sample := max(_SAMPLE, _SAMPLE_PER_CLUSTER * n_clusters)):
        points = points[torch.randperm(len(points), generator=generator)[:n_sample]]
    seeds = [int(torch.randint(len(points), (1,), generator=generator))]
    distances = torch.full((len(points),), torch.inf)
    for _ in range(n_clusters - 1):
        seed = points[seeds[-1:]]  # not by matrix products: 0 for the point itself
        latest = torch.cdist(seed, points, compute_mode="donot_use_mm_for_euclid_dist")[0]
        distances = torch.minimum(distances, latest.square_())
        cumulative = distances.double().cumsum(dim=0)
        # A random number below the total selects a point by its share; any if all shares are 0.
        target = torch.rand(1, generator=generator, dtype=torch.float64) * cumulative[-1]
        seeds.append(min(int(torch.searchsorted(cumulative, target, right=True)), len(points) - 1))
    return points[torch.tensor(seeds)].clone()


def _lloyd(points: Tensor, centroids: Tensor, max_iter: int) -> tuple[Tensor, float]:
    """Labels after at most ``max_iter`` iterations, and the sum of squared distances."""
    labels, distances = _nearest(points, centroids)
    for _ in range(max_iter):
        sizes = torch.bincount(labels, minlength=len(centroids))
        sums = torch.zeros_like(centroids).index_add_(0, labels, points)
        centroids = sums / sizes.clamp(min=1)[:, None]
        empty = (sizes == 0).nonzero()[:, 0]
        if len(empty):  # an empty cluster restarts at a far point
            centroids[empty] = points[distances.topk(len(empty)).indices]
        previous = labels
        labels, distances = _nearest(points, centroids)
        if torch.equal(labels, previous):
            break
    return labels, float(distances.sum(dtype=torch.float64))


def _nearest(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centroid of each point and the squared distance to it."""
    squares = centroids.square().sum(dim=1)
    labels, distances = [], []
    for start in range(0, len(points), _CHUNK):
        part = points[start : start + _CHUNK]
        least = torch.addmm(squares, part, centroids.T, alpha=-2.0).min(dim=1)
        labels.append(least.indices)
        distances.append((least.values + part.square().sum(dim=1)).clamp(min=0.0))
    return torch.cat(labels), torch.cat(distances)
