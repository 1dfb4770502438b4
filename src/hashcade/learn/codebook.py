"""The code book: one code per class, instead of any path through the tree.

The paper takes the best slot of each level independently, so one wrong level sends an item to an
empty bucket. With the code of the largest sum of slot scores, levels can correct each other.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from hashcade.codes import CodeShape, solve_cascade
from hashcade.learn.assignment import Floats, Ints


def solve_codebook(
    scores: Iterable[Floats], labels: Ints, n_classes: int, shape: CodeShape, **penalties: float
) -> Ints:
    """Buckets of every class, ascending, int64[n_classes, sparsity]: a cascade over class means.

    Scores are an iterable of chunks, float[m, depth, width]; labels are those of all chunks.
    """
    sums, start = np.zeros((n_classes, shape.depth * shape.width)), 0
    for part in scores:
        np.add.at(sums, labels[start : start + len(part)], part.reshape(len(part), -1))
        start += len(part)
    means = sums / np.bincount(labels, minlength=n_classes)[:, None]
    means = means.reshape(n_classes, shape.depth, shape.width).transpose(1, 0, 2)
    return shape.codes_to_bucket_ids(solve_cascade(means, shape, **penalties))


class CodebookLoss:
    """Cross-entropy of the sums of slot scores, times ``sharpness``, over the different codes."""

    def __init__(
        self, codebook: Ints, shape: CodeShape, *, sharpness: float, device: torch.device
    ) -> None:
        book, inverse = np.unique(codebook, axis=0, return_inverse=True)
        self._book_shape, self._sharpness = book.shape, sharpness
        self._code_of_class = torch.from_numpy(inverse.reshape(-1)).to(device)
        self._slots = torch.from_numpy(shape.paths(book.ravel()).T.copy()).to(device)

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Loss of a batch: scores float[n, depth, width], labels int[n] as rows of the book."""
        sums = scores.new_zeros(len(scores), self._book_shape[0])
        for level, slots in enumerate(self._slots):  # slots: (n_codes · sparsity,)
            bucket_scores = scores[:, level].index_select(1, slots)
            sums = sums + bucket_scores.reshape(len(scores), *self._book_shape).mean(dim=2)
        log_shares = (self._sharpness * sums).log_softmax(dim=1)
        return -log_shares.gather(1, self._code_of_class[labels][:, None]).mean()
