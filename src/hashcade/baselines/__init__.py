"""Baselines: everything the paper compares with, under the contract of ``Hasher``.

- :class:`Exhaustive` ("Metric"): one bucket, everything is looked at.
- :class:`LSH`: random hyperplanes, one bit each.
- :class:`DCH`: bits that are learned, by the losses of Deep Cauchy Hashing.
- :class:`Threshold` ("Th"): the largest numbers of an embedding are its buckets.
- :class:`VQ`: the nearest centroids of k-means are the buckets.
- :func:`flat`: the method of Jeong & Song 2018, a ``Hasher`` with one level.
- :func:`ours`, :func:`ours_without_remapping` ("Ours-r"), :func:`ours_codebook` ("Ours+").
- :func:`make_method`: each of them by name, sized as in the paper's tables.

All of them have ``fit``, ``transform``, ``scores``, ``embed`` and ``shape_``, so one function
evaluates them all. Needs the extra ``baselines`` (torch, safetensors and scikit-learn).
"""

from typing import TYPE_CHECKING

from hashcade._extras import require_extra
from hashcade._lazy import lazy_names

require_extra("torch", "baselines")
require_extra("safetensors", "baselines")

if TYPE_CHECKING:
    from hashcade.baselines._base import Baseline
    from hashcade.baselines._cauchy import cauchy_cross_entropy, cauchy_quantization
    from hashcade.baselines._dch import DCH
    from hashcade.baselines._exhaustive import Exhaustive
    from hashcade.baselines._lsh import LSH
    from hashcade.baselines._methods import (
        METHODS,
        flat,
        make_method,
        ours,
        ours_codebook,
        ours_without_remapping,
    )
    from hashcade.baselines._threshold import Threshold
    from hashcade.baselines._vq import VQ
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "DCH": "hashcade.baselines._dch",
            "LSH": "hashcade.baselines._lsh",
            "METHODS": "hashcade.baselines._methods",
            "VQ": "hashcade.baselines._vq",
            "Baseline": "hashcade.baselines._base",
            "Exhaustive": "hashcade.baselines._exhaustive",
            "Threshold": "hashcade.baselines._threshold",
            "cauchy_cross_entropy": "hashcade.baselines._cauchy",
            "cauchy_quantization": "hashcade.baselines._cauchy",
            "flat": "hashcade.baselines._methods",
            "make_method": "hashcade.baselines._methods",
            "ours": "hashcade.baselines._methods",
            "ours_codebook": "hashcade.baselines._methods",
            "ours_without_remapping": "hashcade.baselines._methods",
        },
    )

__all__ = [
    "DCH",
    "LSH",
    "METHODS",
    "VQ",
    "Baseline",
    "Exhaustive",
    "Threshold",
    "cauchy_cross_entropy",
    "cauchy_quantization",
    "flat",
    "make_method",
    "ours",
    "ours_codebook",
    "ours_without_remapping",
]
