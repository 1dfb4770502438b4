"""Evaluation: precision and speed-up of a table, in percent as the paper has it.

Metrics of results (:func:`precision_at` and others), :func:`exact_search` for comparison, and whole
protocols, the paper's and a plain one (:func:`evaluate_hasher`, :func:`evaluate_index`), which give
an :class:`Evaluation`. Needs numpy and numba; never torch.
"""

from hashcade.evaluate.exact import exact_search
from hashcade.evaluate.metrics import (
    ClassMetrics,
    bucket_nmi,
    mean_average_precision,
    per_class,
    precision_at,
    recall_at,
    speedup_factor,
)
from hashcade.evaluate.protocol import evaluate_hasher, evaluate_index
from hashcade.evaluate.run import Evaluation

__all__ = [
    "ClassMetrics", "Evaluation", "bucket_nmi", "evaluate_hasher", "evaluate_index",
    "exact_search", "mean_average_precision", "per_class", "precision_at", "recall_at",
    "speedup_factor",
]  # fmt: skip
