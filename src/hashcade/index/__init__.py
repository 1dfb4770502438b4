"""The index: a hash table for exact search among the items of a few buckets.

- :class:`HashIndex`: build, search, change, store, look into.
- :class:`SearchResult`: what a search gives.

Needs numpy and numba; never torch.
"""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.index._index import HashIndex
    from hashcade.index._search import SearchResult
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "HashIndex": "hashcade.index._index",
            "SearchResult": "hashcade.index._search",
        },
    )

__all__ = ["HashIndex", "SearchResult"]
