"""Clusters of vectors by Lloyd's algorithm, in torch: the same on every run, no dependency.

A few dozen lines suffice, because the clusters are only a start here: the hash head is trained
on them afterwards, and smooths what better seeding would gain.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_CHUNK = 4096
_MOST_DIRECTIONS = 128  # of larger points, those in which they differ most


def kmeans_labels(
    points: Tensor, n_clusters: int, *, seed: int, n_rounds: int = 25, n_starts: int = 3
) -> npt.NDArray[np.int64]:
    """Cluster of each point, int64[n], numbered 0, 1, 2, ... without a gap.

    Of several starts the one with the least sum of squared distances. A start draws points one
    after another, each with a chance that grows with the squared distance to those drawn so far
    (k-means++, Arthur and Vassilvitskii 2007).

    Parameters
    ----------
    points : float[n, size]
        At least ``n_clusters`` of them. Where fewer are different, there are fewer clusters.
    """
    generator = torch.Generator().manual_seed(seed)
    points = _main_directions(points, seed)
    best, least = torch.zeros(len(points), dtype=torch.int64), float("inf")
    for _ in range(n_starts):
        labels, total = _lloyd(points, _spread_out(points, n_clusters, generator), n_rounds)
        if total < least:
            best, least = labels, total
    return np.unique(best.cpu().numpy(), return_inverse=True)[1].astype(np.int64)


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
    """Points that lie apart, drawn at random, float[n_clusters, size]."""
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    gaps = torch.full((len(points),), torch.inf)
    for _ in range(n_clusters - 1):
        newest = (points - points[chosen[-1]]).square().sum(dim=1)  # exact: 0 for the point itself
        gaps = torch.minimum(gaps, newest.cpu())
        reach = gaps.double().cumsum(dim=0)
        # A number below the total falls into one point's share; if all shares are 0, anywhere.
        at = torch.rand(1, generator=generator, dtype=torch.float64) * reach[-1]
        chosen.append(min(int(torch.searchsorted(reach, at, right=True)), len(points) - 1))
    return points[torch.tensor(chosen, device=points.device)].clone()


def _lloyd(points: Tensor, centres: Tensor, n_rounds: int) -> tuple[Tensor, float]:
    """Labels after some rounds from given centres, and the sum of squared distances."""
    labels, gaps = _nearest(points, centres)
    for _ in range(n_rounds):
        sizes = torch.bincount(labels, minlength=len(centres))
        sums = torch.zeros_like(centres).index_add_(0, labels, points)
        centres = sums / sizes.clamp(min=1)[:, None]
        empty = (sizes == 0).nonzero()[:, 0]
        if len(empty):  # a centre that lost all its points starts anew where points lie far out
            centres[empty] = points[gaps.topk(len(empty)).indices]
        before = labels
        labels, gaps = _nearest(points, centres)
        if torch.equal(labels, before):
            break
    return labels, float(gaps.sum(dtype=torch.float64))


def _nearest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centre of each point and the squared distance to it."""
    squares = centres.square().sum(dim=1)
    labels, gaps = [], []
    for at in range(0, len(points), _CHUNK):
        part = points[at : at + _CHUNK]
        least = (squares - 2.0 * part @ centres.T).min(dim=1)
        labels.append(least.indices)
        gaps.append((least.values + part.square().sum(dim=1)).clamp(min=0.0))
    return torch.cat(labels), torch.cat(gaps)
