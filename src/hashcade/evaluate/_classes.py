"""The figures of a search, class by class: which classes it serves badly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.codes._check import as_array
from hashcade.evaluate._check import checked_ids, checked_labels, joint_labels, right_results


@dataclass(frozen=True, eq=False)
class ClassFigures:
    """Figures of the queries of each class.

    Attributes
    ----------
    labels : array[c]
        Classes that were asked for, ascending.
    n_queries : int64[c]
    n_items : int64[c]
        How many items of the class there are in the database.
    precision : float64[c]
        Share of right results, in percent.
    candidates : float64[c]
        Mean number of items looked at.
    """

    labels: npt.NDArray[Any]
    n_queries: npt.NDArray[np.int64]
    n_items: npt.NDArray[np.int64]
    precision: npt.NDArray[np.float64]
    candidates: npt.NDArray[np.float64]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the figures as lists, to be written as JSON."""
        return {
            "labels": self.labels.tolist(),
            "n_queries": self.n_queries.tolist(),
            "n_items": self.n_items.tolist(),
            "precision": self.precision.tolist(),
            "candidates": self.candidates.tolist(),
        }


def per_class(
    ids: npt.ArrayLike,
    candidates: npt.ArrayLike,
    query_labels: npt.ArrayLike,
    item_labels: npt.ArrayLike,
) -> ClassFigures:
    """Precision and candidates for the queries of each class.

    Parameters
    ----------
    ids : int[q, n]
        Results as for :func:`precision_at`.
    candidates : int[q]
        Items that each query looked at.
    query_labels : int or str[q]
    item_labels : int or str[n_items]

    Examples
    --------
    >>> figures = per_class([[0], [0], [1]], [2, 4, 5], ["cat", "cat", "dog"], ["cat", "cat"])
    >>> figures.labels.tolist(), figures.precision.tolist(), figures.candidates.tolist()
    (['cat', 'dog'], [100.0, 0.0], [3.0, 5.0])
    """
    names = checked_labels("item_labels", item_labels)
    found = checked_ids("ids", ids, len(names))
    wanted = checked_labels("query_labels", query_labels, len(found), "ids")
    counts = as_array("candidates", candidates)
    if counts.shape != (len(found),):
        raise ValueError(f"candidates has shape {counts.shape}, must be ({len(found)},)")
    queries, items, classes = joint_labels(wanted, names)
    right = right_results(found, queries, items).mean(axis=1)
    n_queries = np.bincount(queries, minlength=len(classes))
    n_items = np.bincount(items, minlength=len(classes))
    asked = n_queries > 0
    share = np.bincount(queries, right, len(classes))[asked] / n_queries[asked]
    looked_at = np.bincount(queries, counts, len(classes))[asked] / n_queries[asked]
    return ClassFigures(classes[asked], n_queries[asked], n_items[asked], 100.0 * share, looked_at)
