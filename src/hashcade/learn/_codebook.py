"""Joint decoding: a book of buckets, one code per class, in place of any path through the tree.

The hash function of the paper takes the best slot of each level by itself, so one wrong level
sends an item to a bucket where nothing lives. With a code book an item goes to the code of the
book with the largest sum of slot scores over the levels: what a level does not know, another
makes up for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hashcade.codes._cascade import solve_cascade
from hashcade.codes._shape import CodeShape

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_CHUNK = 1024


def solve_codebook(
    scores: Floats,
    labels: Ints,
    n_classes: int,
    shape: CodeShape,
    *,
    sibling_penalty: float,
    collision_penalty: float,
) -> Ints:
    """Buckets of every class: one cascade over the class means of all items.

    Parameters
    ----------
    scores : float[n, depth, width]
        Slot scores of the items.
    labels : int[n]
        Their classes, 0 to ``n_classes - 1``; each must occur.

    Returns
    -------
    int64[n_classes, sparsity]
        Bucket ids, ascending in a row.
    """
    sums = np.zeros((n_classes, shape.depth * shape.width))
    np.add.at(sums, labels, scores.reshape(len(scores), -1))
    means = sums / np.bincount(labels, minlength=n_classes)[:, None]
    codes = solve_cascade(
        means.reshape(n_classes, shape.depth, shape.width).transpose(1, 0, 2),
        shape,
        sibling_penalty=sibling_penalty,
        collision_penalty=collision_penalty,
    )
    return shape.codes_to_bucket_ids(codes)


def assign_to_book(scores: Floats, codebook: Ints, shape: CodeShape) -> Ints:
    """The buckets of the code of the book that fits best, those with the largest sums first.

    A code fits by the sum of slot scores over the levels, of a bucket or on average over its
    buckets. Sums are float64 and run from level 1 down; of equal sums the lower id comes first. So
    with one bucket to a code this is the order in which an index probes its buckets.

    Parameters
    ----------
    scores : float[n, depth, width]
        Slot scores of items.
    codebook : int64[n_codes, sparsity]
        Buckets of the book, ascending in a row.

    Returns
    -------
    int64[n, sparsity]
    """
    book = np.unique(codebook, axis=0)  # in ascending order, equal codes once
    found = np.empty((len(scores), shape.sparsity), np.int64)
    for at in range(0, len(scores), _CHUNK):
        sums = bucket_sums(scores[at : at + _CHUNK], book.ravel(), shape)
        sums = sums.reshape(len(sums), *book.shape)
        best = sums.mean(axis=2).argmax(axis=1)
        own = sums[np.arange(len(sums)), best]
        order = np.argsort(-own, axis=1, kind="stable")
        found[at : at + _CHUNK] = np.take_along_axis(book[best], order, axis=1)
    return found


def bucket_sums(scores: Floats, buckets: Ints, shape: CodeShape) -> npt.NDArray[np.float64]:
    """Sums of slot scores over the levels, float64[n, n_buckets]."""
    paths = shape.paths(buckets)  # (n_buckets, depth)
    sums = np.zeros((len(scores), len(buckets)))
    for level in range(shape.depth):
        sums += scores[:, level, paths[:, level]]
    return sums


def joint_loss(
    scores: Tensor, labels: Tensor, codebook: Tensor, shape: CodeShape, *, sharpness: float
) -> Tensor:
    """Cross-entropy of the sums over the codes of the book.

    Parameters
    ----------
    scores : float[n, depth, width]
        Slot scores of a batch.
    labels : int[n]
        Classes, rows of ``codebook``. Classes with the same code count as one.
    codebook : int64[n_classes, sparsity]
        The buckets of each class.
    sharpness
        Factor on the sums before the softmax: scores of unit length need one above 1.
    """
    rows = codebook.cpu().numpy()
    book, inverse = np.unique(rows, axis=0, return_inverse=True)
    place = torch.from_numpy(inverse.reshape(-1)).to(scores.device)
    slots = torch.from_numpy(shape.paths(book.ravel())).to(scores.device)  # (codes · sparsity, k)
    sums = scores.new_zeros(len(scores), len(book))
    for level in range(shape.depth):
        of_buckets = scores[:, level].index_select(1, slots[:, level])
        sums = sums + of_buckets.reshape(len(scores), *book.shape).mean(dim=2)
    log_shares = (sharpness * sums).log_softmax(dim=1)
    return -log_shares.gather(1, place[labels][:, None]).mean()
