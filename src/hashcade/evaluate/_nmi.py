"""How much the buckets say about the classes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hashcade.codes._check import as_array
from hashcade.evaluate._check import Ints, checked_labels


def bucket_nmi(bucket_ids: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Normalised mutual information of buckets and classes, in percent.

    Normalised by the arithmetic mean of the two entropies; 100 if both are one group.

    Parameters
    ----------
    bucket_ids : int[n] or int[n, sparsity]
        Buckets of the items. With several per item, the first of each, which is its best.
    labels : int or str[n]

    Examples
    --------
    >>> bucket_nmi([7, 7, 3, 3], ["cat", "cat", "dog", "dog"])
    100.0
    >>> bucket_nmi([7, 3, 7, 3], ["cat", "cat", "dog", "dog"])
    0.0
    """
    buckets = as_array("bucket_ids", bucket_ids)
    if buckets.ndim == 2 and buckets.shape[1] > 0:
        buckets = buckets[:, 0]
    if buckets.ndim != 1 or len(buckets) == 0:
        raise ValueError(f"bucket_ids has shape {buckets.shape}, must be (n,) or (n, sparsity)")
    if buckets.dtype.kind not in "iu":
        raise ValueError(f"bucket_ids has dtype {buckets.dtype}, must be integers")
    names = checked_labels("labels", labels, len(buckets), "bucket_ids")
    one = np.unique(buckets, return_inverse=True)[1].astype(np.int64)
    two = np.unique(names, return_inverse=True)[1].astype(np.int64)
    mean = 0.5 * (_entropy(one) + _entropy(two))
    if mean == 0.0:
        return 100.0
    # Mutual information is the sum of the entropies minus the joint one.
    both = np.unique(one * (two.max() + 1) + two, return_inverse=True)[1].astype(np.int64)
    shared = 2 * mean - _entropy(both)
    return float(100.0 * min(max(shared / mean, 0.0), 1.0))


def _entropy(groups: Ints) -> float:
    share = np.bincount(groups) / len(groups)
    return float(-(share * np.log(share)).sum())
