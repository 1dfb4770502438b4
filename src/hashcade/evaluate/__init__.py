"""Evaluation: precision and speed-up of a table, in percent as the paper has it.

- :func:`precision_at`, :func:`recall_at`, :func:`mean_average_precision`: what a search found.
- :func:`speedup_factor`, :func:`bucket_nmi`: how much it looked at, how pure its buckets are.
- :func:`per_class`, :class:`ClassMetrics`: the same for each class.
- :func:`exact_search`: the nearest items of all, for comparison.
- :func:`evaluate_search`, :func:`evaluate_hasher`, :func:`evaluate_paper`, :func:`evaluate_index`,
  :class:`Evaluation`: whole protocols, the paper's and a plain one.

Needs numpy and numba; never torch.
"""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
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
    from hashcade.evaluate.protocol import (
        evaluate_hasher,
        evaluate_index,
        evaluate_paper,
        evaluate_search,
    )
    from hashcade.evaluate.result import Evaluation
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "ClassMetrics": "hashcade.evaluate.metrics",
            "Evaluation": "hashcade.evaluate.result",
            "bucket_nmi": "hashcade.evaluate.metrics",
            "evaluate_hasher": "hashcade.evaluate.protocol",
            "evaluate_index": "hashcade.evaluate.protocol",
            "evaluate_paper": "hashcade.evaluate.protocol",
            "evaluate_search": "hashcade.evaluate.protocol",
            "exact_search": "hashcade.evaluate.exact",
            "mean_average_precision": "hashcade.evaluate.metrics",
            "per_class": "hashcade.evaluate.metrics",
            "precision_at": "hashcade.evaluate.metrics",
            "recall_at": "hashcade.evaluate.metrics",
            "speedup_factor": "hashcade.evaluate.metrics",
        },
    )

__all__ = [
    "ClassMetrics",
    "Evaluation",
    "bucket_nmi",
    "evaluate_hasher",
    "evaluate_index",
    "evaluate_paper",
    "evaluate_search",
    "exact_search",
    "mean_average_precision",
    "per_class",
    "precision_at",
    "recall_at",
    "speedup_factor",
]
