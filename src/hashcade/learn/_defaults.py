"""Settings that were left open, from the number of classes, the loss and the size of the data.

The penalties are the ones the paper was trained with. They are meant for the scale of the scores,
and that is the same for all data: embeddings are brought to unit spread before the head, the
regulariser of npairs then keeps scores around 1, and triplet normalises them.
"""

from __future__ import annotations

_HASH_REGULARISER = {1: 0.03, 2: 0.01, 3: 0.003}  # λ by sparsity; 0.001 from 4 on


def default_width(n_classes: int, depth: int) -> int:
    """Slots per level: a power of two, about a quarter of the classes, enough buckets.

    The paper has 32 (npairs) and 128 for 100 classes, 64 for 119, 512 and 256 for 1000.
    """
    width = 4
    while 4 * width < n_classes or width**depth < n_classes:
        width *= 2
    return width


def default_sibling_penalty() -> float:
    """α: so large that siblings part whenever there is room."""
    return 50.0


def default_collision_penalty(loss: str) -> float:
    """β: how much classes spread over the slots of a level."""
    return 0.5 if loss == "triplet" else 0.05


def default_regulariser(stage: str, sparsity: int) -> float:
    """λ of npairs: smaller with more active slots, because their scores share the softmax."""
    return 0.003 if stage == "base" else _HASH_REGULARISER.get(sparsity, 0.001)


def default_sharpness(loss: str) -> float:
    """Factor on sums of scores in a softmax: those of triplet have unit length, which is little."""
    return 16.0 if loss == "triplet" else 1.0


def default_items_per_class(classes_per_batch: int, class_size: int) -> int:
    """Even, at least 2: the paper's batch is 64 × 2; with fewer classes it need not be smaller."""
    return max(2, min(128 // classes_per_batch, class_size) // 2 * 2)


def default_rate(*, images: bool) -> float:
    """Peak learning rate: NIN diverged with more than 1e-3, a head on embeddings can take more."""
    return 1e-3 if images else 3e-3


def default_steps(n_items: int, batch_size: int, *, images: bool, schedule: str | int) -> int:
    """Ten epochs for embeddings, thirty for images, at least 1000 steps; 70,000 in the paper."""
    if schedule == "paper":
        return 70_000
    epochs = 30 if images else 10
    return max(1000, -(-epochs * n_items // batch_size))
