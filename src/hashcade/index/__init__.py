"""The index: a hash table for exact search among the items of a few buckets.

- :class:`HashIndex`: build, search, change, store, look into.
- :class:`SearchResult`: what a search gives.
- :class:`Encoded`: what a model makes of items, and where a search looks for them.
- :func:`read_origin`, :class:`Origin`: which model and data a stored index came from, and what its
  items and classes are called.

Needs numpy and numba; never torch.
"""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

NO_LABEL = -1
METRICS = ("euclidean", "inner_product")


def warmup() -> None:
    """Stand-in."""
    import numpy as np

    from hashcade.codes import CodeShape
    from hashcade.index._index import HashIndex

    index = HashIndex.build([0], np.zeros((1, 2), "f4"), shape=CodeShape(width=2, depth=2))
    scores = np.zeros((2, 2, 2), dtype=np.float32)
    for metric in METRICS:
        for where in (
            {"bucket_ids": np.zeros((2, 1), dtype=np.int64)},
            {"bucket_ids": [[0], [0]]},
            {"scores": scores, "n_probe": 1},
        ):
            index.search(np.zeros((2, 2), "f4"), n_neighbors=1, metric=metric, **where)


if TYPE_CHECKING:
    from hashcade.index._check import checked_ids
    from hashcade.index._index import HashIndex, Items, is_index, new_generation, read_generation
    from hashcade.index._origin import Origin, model_fingerprint, read_origin, write_origin
    from hashcade.index._search import SearchResult
    from hashcade.index.encoded import Encoded
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Encoded": "hashcade.index.encoded",
            "HashIndex": "hashcade.index._index",
            "Items": "hashcade.index._index",
            "checked_ids": "hashcade.index._check",
            "is_index": "hashcade.index._index",
            "new_generation": "hashcade.index._index",
            "read_generation": "hashcade.index._index",
            "Origin": "hashcade.index._origin",
            "SearchResult": "hashcade.index._search",
            "model_fingerprint": "hashcade.index._origin",
            "read_origin": "hashcade.index._origin",
            "write_origin": "hashcade.index._origin",
        },
    )

__all__ = [
    "METRICS",
    "NO_LABEL",
    "Encoded",
    "HashIndex",
    "Items",
    "Origin",
    "SearchResult",
    "checked_ids",
    "is_index",
    "model_fingerprint",
    "new_generation",
    "read_generation",
    "read_origin",
    "warmup",
    "write_origin",
]
