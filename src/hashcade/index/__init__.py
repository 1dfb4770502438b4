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

if TYPE_CHECKING:
    from hashcade.index._index import HashIndex
    from hashcade.index._origin import Origin, model_fingerprint, read_origin, write_origin
    from hashcade.index._search import SearchResult
    from hashcade.index.encoded import Encoded
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Encoded": "hashcade.index.encoded",
            "HashIndex": "hashcade.index._index",
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
    "Origin",
    "SearchResult",
    "model_fingerprint",
    "read_origin",
    "write_origin",
]
