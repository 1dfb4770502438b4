"""Triplet loss with semi-hard negatives: on embeddings, and on one level of hash scores.

Both are the same loss over a matrix of distances between the items of a batch; they differ in
the distance. The mining is that of ``tf.contrib.losses.metric_learning``, which the paper used.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def triplet_loss(embeddings: Tensor, labels: Tensor, *, margin: float = 0.3) -> Tensor:
    """Triplet loss of the base network: squared euclidean distance of unit vectors.

    Parameters
    ----------
    embeddings : float[n, size]
        Any vectors; they are brought to unit length here.
    labels : int[n]
        Classes. Any composition of the batch will do.
    margin
        By how much a negative has to be farther away than a positive.

    Returns
    -------
    float[]
        The mean over all ordered pairs (anchor, positive), zero if the batch has no such pair or
        one class only.
    """
    unit = F.normalize(embeddings, dim=1)
    squared = (2.0 - 2.0 * unit @ unit.T).clamp(min=0.0)  # (n, n); rounding may go below zero
    return semi_hard_loss(squared, labels, margin=margin)


def hash_triplet_loss(
    scores: Tensor, codes: Tensor, labels: Tensor, *, margin: float = 0.3
) -> Tensor:
    """Triplet loss of one level: L1 distance over the slots that are active in either code.

    Parameters
    ----------
    scores : float[n, width]
        The level's scores, rows of unit length (the caller normalises them, because the class
        means are taken from the normalised ones too).
    codes : bool[n, width]
        The code of each item's class at this level, the same number of active slots in each row.
    labels : int[n]
        Labels remapped by code: equal code, equal label.
    margin
        As in :func:`triplet_loss`.
    """
    return semi_hard_loss(masked_l1_distances(scores, codes), labels, margin=margin)


def masked_l1_distances(scores: Tensor, codes: Tensor) -> Tensor:
    """L1 distances of all pairs over the union of their active slots, float[n, n].

    Only active slots are looked at. With s of them per row, this takes s matrices of (n, n)
    instead of a tensor of (n, n, width): slots active for i are summed once from i's side, and
    what is active for j alone from j's side.
    """
    n_active = codes.sum(dim=1)
    per_row = int(n_active[0]) if len(n_active) else 0
    if not bool((n_active == per_row).all()):
        raise ValueError(
            f"codes have {sorted(set(n_active.tolist()))} active slots, must be one number"
        )
    active = codes.nonzero()[:, 1].reshape(len(codes), per_row)  # (n, s)
    distances = scores.new_zeros(len(scores), len(scores))
    for slots in active.T:  # the s-th active slot of every row, (n,)
        own = scores.gather(1, slots[:, None])  # (n, 1): the row's score in its own slot
        others = scores[:, slots].T  # (n, n): [i, j] is the score of j in the slot of i
        gap = (own - others).abs()
        only_mine = ~codes[:, slots].T  # (n, n): [i, j] the slot of i is not active for j
        distances = distances + gap + (gap * only_mine).T
    return distances


def semi_hard_loss(distances: Tensor, labels: Tensor, *, margin: float) -> Tensor:
    """Triplet loss over a matrix of distances, one semi-hard negative per (anchor, positive).

    The negative is the nearest one that is farther away than the positive; if there is none,
    the farthest of all.

    Parameters
    ----------
    distances : float[n, n]
        Row = anchor.
    labels : int[n]
        Equal label = positive.
    """
    same = labels[:, None] == labels[None, :]  # (n, n)
    positives = same.clone().fill_diagonal_(False)
    if bool(same.all()) or not bool(positives.any()):  # nothing to tell apart
        return distances.sum() * 0.0
    negatives = mine_semi_hard(distances, same)
    hinge = (margin + distances - distances.gather(1, negatives)).clamp(min=0.0)
    return hinge[positives].mean()


@torch.no_grad()
def mine_semi_hard(distances: Tensor, same: Tensor) -> Tensor:
    """For each (anchor, positive) the column of its negative, int64[n, n].

    Sorting the negatives of a row answers all positives of that row by bisection; the textbook
    way compares all triples. Every row must have a negative.
    """
    ordered, columns = distances.masked_fill(same, torch.inf).sort(dim=1)
    n_negatives = (~same).sum(dim=1, keepdim=True)  # (n, 1)
    # How many negatives are at most as far as the positive: the next one is strictly farther.
    first_farther = torch.searchsorted(ordered, distances.contiguous(), right=True)
    return columns.gather(1, torch.minimum(first_farther, n_negatives - 1))
