"""Npairs loss: on embeddings, and on one level of hash scores.

Anchor i and positive i are two items of one class. Each anchor is compared with all positives by
a dot product, and a softmax has to find the ones with its label.
"""

from __future__ import annotations

from torch import Tensor


def npairs_loss(
    anchors: Tensor, positives: Tensor, labels: Tensor, *, regulariser: float = 0.003
) -> Tensor:
    """Npairs loss of the base network: plain dot products, no normalisation.

    Parameters
    ----------
    anchors, positives : float[n, size]
        Row i of both belongs to one class.
    labels : int[n]
        Classes of the pairs. Equal labels share the target probability.
    regulariser
        λ of the term 0.25·λ·(mean ‖anchor‖² + mean ‖positive‖²), which keeps the length of the
        vectors, and so the softmax, in bounds.
    """
    return _softmax_loss(anchors @ positives.T, labels) + _length_penalty(
        anchors, positives, regulariser
    )


def hash_npairs_loss(
    anchors: Tensor,
    positives: Tensor,
    codes: Tensor,
    labels: Tensor,
    *,
    regulariser: float = 0.03,
) -> Tensor:
    """Npairs loss of one level: dot products over the slots that are active in either code.

    Parameters
    ----------
    anchors, positives : float[n, width]
        The level's scores; row i of both belongs to one class.
    codes : bool[n, width]
        The code of each pair's class at this level.
    labels : int[n]
        Labels remapped by code: equal code, equal label.
    regulariser
        As in :func:`npairs_loss`; it sees all slots.
    """
    return _softmax_loss(masked_dot_products(anchors, positives, codes), labels) + _length_penalty(
        anchors, positives, regulariser
    )


def masked_dot_products(anchors: Tensor, positives: Tensor, codes: Tensor) -> Tensor:
    """Dot products of all pairs over the union of their active slots, float[n, n].

    The union of two codes a and b is a + (1 − a)·b, slot by slot, so the masked product splits
    into two matrix products, and no tensor of (n, n, width) is built.
    """
    anchor_active = anchors * codes  # the slots of the anchor's code
    anchor_rest = anchors - anchor_active  # all others: they count where the positive is active
    return anchor_active @ positives.T + anchor_rest @ (positives * codes).T


def _softmax_loss(similarities: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each row against its label's columns in equal parts."""
    targets = (labels[:, None] == labels[None, :]).to(similarities.dtype)
    targets = targets / targets.sum(dim=1, keepdim=True)
    return -(targets * similarities.log_softmax(dim=1)).sum(dim=1).mean()


def _length_penalty(anchors: Tensor, positives: Tensor, regulariser: float) -> Tensor:
    squares = anchors.square().sum(dim=1).mean() + positives.square().sum(dim=1).mean()
    return 0.25 * regulariser * squares
