"""Triplet and npairs loss: on embeddings, and on the active slots of one level of hash scores.

Semi-hard negatives are those of ``tf.contrib.losses.metric_learning``, which the paper used.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def npairs_loss(
    anchors: Tensor, positives: Tensor, labels: Tensor, *, regularization: float = 0.003
) -> Tensor:
    """Npairs loss of the base network: a softmax over plain dot products.

    Row i of ``anchors`` and ``positives``, float[n, size], is of class ``labels[i]``; equal labels
    share the target. λ·0.25·(mean ‖anchor‖² + mean ‖positive‖²), λ the regularization, is added.
    """
    return _npairs(anchors @ positives.T, anchors, positives, labels, regularization)


def hash_npairs_loss(
    anchors: Tensor, positives: Tensor, codes: Tensor, labels: Tensor, *,
    regularization: float = 0.03,
) -> Tensor:  # fmt: skip
    """Npairs loss of one level: dot products over the slots that are active in either code.

    Row i of ``anchors`` and ``positives``, the level's scores float[n, width], belongs to a class
    with ``codes[i]``, bool[n, width]. Labels are remapped: equal code, equal label.
    """
    # The union of two codes a and b is a + (1 − a)·b: the masked product is two matrix products.
    active = anchors * codes  # slots of the anchor's code
    inactive = anchors - active  # all others: they count if active in the positive's code
    similarities = active @ positives.T + inactive @ (positives * codes).T
    return _npairs(similarities, anchors, positives, labels, regularization)


def _npairs(
    similarities: Tensor, anchors: Tensor, positives: Tensor, labels: Tensor, regularization: float
) -> Tensor:
    targets = (labels[:, None] == labels[None, :]).to(similarities.dtype)
    targets = targets / targets.sum(dim=1, keepdim=True)
    loss = -(targets * similarities.log_softmax(dim=1)).sum(dim=1).mean()
    squares = anchors.square().sum(dim=1).mean() + positives.square().sum(dim=1).mean()
    return loss + 0.25 * regularization * squares


def triplet_loss(embeddings: Tensor, labels: Tensor, *, margin: float = 0.3) -> Tensor:
    """Triplet loss of the base network: squared euclidean distance of embeddings, float[n, size].

    They are normalized first. The mean is over all ordered pairs (anchor, positive); 0 without.
    """
    unit = F.normalize(embeddings, dim=1)
    squared = (2.0 - 2.0 * unit @ unit.T).clamp(min=0.0)  # (n, n); rounding may go below zero
    return semi_hard_loss(squared, labels, margin=margin)


def hash_triplet_loss(
    scores: Tensor, codes: Tensor, labels: Tensor, *, margin: float = 0.3
) -> Tensor:
    """Triplet loss of one level: L1 distance over the slots that are active in either code.

    Scores, float[n, width], have rows of unit length. ``codes``, bool[n, width], are those of the
    items' classes, with the same number of active slots in each row. Labels are remapped: equal
    code, equal label.
    """
    return semi_hard_loss(masked_l1_distances(scores, codes), labels, margin=margin)


def masked_l1_distances(scores: Tensor, codes: Tensor) -> Tensor:
    """L1 distances of all pairs over the union of their active slots, float[n, n]."""
    counts = sorted(set(codes.sum(dim=1).tolist()))
    if len(counts) > 1:
        raise ValueError(f"codes have {counts} active slots, must be one number")
    active = codes.nonzero()[:, 1].reshape(len(codes), sum(counts))  # (n, s)
    distances = scores.new_zeros(len(scores), len(scores))
    for slots in active.T:  # the s-th active slot of every row, (n,)
        row_scores = scores.gather(1, slots[:, None])  # (n, 1): the row's score in its slot
        column_scores = scores[:, slots].T  # (n, n): [i, j] is the score of j in the slot of i
        difference = (row_scores - column_scores).abs()
        row_only = ~codes[:, slots].T  # (n, n): [i, j] the slot of i is not active for j
        distances = distances + difference + (difference * row_only).T
    return distances


def semi_hard_loss(distances: Tensor, labels: Tensor, *, margin: float) -> Tensor:
    """Triplet loss over distances, float[n, n] with a row per anchor."""
    same = labels[:, None] == labels[None, :]  # (n, n)
    positives = same.clone().fill_diagonal_(False)
    if bool(same.all()) or not bool(positives.any()):  # no triplets
        return distances.sum() * 0.0
    negatives = mine_semi_hard(distances, same)
    hinge = (margin + distances - distances.gather(1, negatives)).clamp(min=0.0)
    return hinge[positives].mean()


@torch.no_grad()
def mine_semi_hard(distances: Tensor, same: Tensor) -> Tensor:
    """The nearest negative that is farther than a positive, else the farthest: columns, [n, n]."""
    ordered, columns = distances.masked_fill(same, torch.inf).sort(dim=1)
    n_negatives = (~same).sum(dim=1, keepdim=True)  # (n, 1)
    # Number of negatives that are at most as far as the positive: the next one is farther.
    first_farther = torch.searchsorted(ordered, distances.contiguous(), right=True)
    return columns.gather(1, torch.minimum(first_farther, n_negatives - 1))
