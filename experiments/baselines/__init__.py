"""The methods of the paper's tables.

- :class:`Exhaustive` ("Metric"): one bucket, a query looks at everything.
- :class:`LSH`: random hyperplanes, one bit each.
- :class:`DCH`: learned bits, by the losses of Deep Cauchy Hashing.
- :class:`Threshold` ("Th"): the largest entries of an embedding are its buckets.
- :class:`VQ`: the nearest centroids of k-means are the buckets.
- :func:`make_method`: each of them, and ours, by name and sized as in the paper's tables.

All of them have ``fit``, ``encode`` and ``shape_``, as ``Hasher`` has, so one function evaluates
them all.
"""

from experiments.baselines.base import Baseline
from experiments.baselines.dch import DCH, cauchy_cross_entropy, cauchy_quantization
from experiments.baselines.methods import METHODS, make_method
from experiments.baselines.unsupervised import LSH, VQ, Exhaustive, Threshold

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
    "make_method",
]
