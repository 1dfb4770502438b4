"""Evaluation: what a table is worth, over arrays, in percent as the paper has it.

- :func:`precision_at`, :func:`recall_at`, :func:`mean_average_precision`: what a search found.
- :func:`speedup_factor`, :func:`bucket_nmi`: how much it looked at, how pure its buckets are.
- :func:`per_class`, :class:`ClassFigures`: the same for each class.
- :func:`exact_search`: the nearest items of all, for comparison.
- :func:`evaluate_search`, :func:`evaluate_hasher`, :func:`evaluate_paper`, :class:`Evaluation`:
  whole protocols, the paper's and a plain one.

Needs numpy and numba; never torch. Nothing here makes a table of all pairs.
"""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.evaluate._classes import ClassFigures, per_class
    from hashcade.evaluate._exact import exact_search
    from hashcade.evaluate._figures import (
        mean_average_precision,
        precision_at,
        recall_at,
        speedup_factor,
    )
    from hashcade.evaluate._hasher import evaluate_hasher, evaluate_paper
    from hashcade.evaluate._nmi import bucket_nmi
    from hashcade.evaluate._protocol import evaluate_search
    from hashcade.evaluate._result import Evaluation
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "ClassFigures": "hashcade.evaluate._classes",
            "Evaluation": "hashcade.evaluate._result",
            "bucket_nmi": "hashcade.evaluate._nmi",
            "evaluate_hasher": "hashcade.evaluate._hasher",
            "evaluate_paper": "hashcade.evaluate._hasher",
            "evaluate_search": "hashcade.evaluate._protocol",
            "exact_search": "hashcade.evaluate._exact",
            "mean_average_precision": "hashcade.evaluate._figures",
            "per_class": "hashcade.evaluate._classes",
            "precision_at": "hashcade.evaluate._figures",
            "recall_at": "hashcade.evaluate._figures",
            "speedup_factor": "hashcade.evaluate._figures",
        },
    )

__all__ = [
    "ClassFigures",
    "Evaluation",
    "bucket_nmi",
    "evaluate_hasher",
    "evaluate_paper",
    "evaluate_search",
    "exact_search",
    "mean_average_precision",
    "per_class",
    "precision_at",
    "recall_at",
    "speedup_factor",
]
