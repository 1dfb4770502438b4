"""The index: a hash table for exact search among the items of a few buckets; never needs torch."""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.index.cancel import NEVER, Cancel
    from hashcade.index.distances import METRICS
    from hashcade.index.encoded import Encoded
    from hashcade.index.filters import Filter
    from hashcade.index.index import HashIndex, warmup
    from hashcade.index.nearest import GroupedVectors
    from hashcade.index.quantised import encode_int8, survivors
    from hashcade.index.search import SearchResult
    from hashcade.index.segment import NO_LABEL, Items
    from hashcade.index.storage import foreign_files, is_index, new_generation, read_generation
    from hashcade.index.validate import check_storage, checked_ids
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cancel": ("NEVER", "Cancel"),
            "distances": ["METRICS"],
            "encoded": ["Encoded"],
            "filters": ["Filter"],
            "index": ("HashIndex", "warmup"),
            "nearest": ["GroupedVectors"],
            "quantised": ("encode_int8", "survivors"),
            "search": ["SearchResult"],
            "segment": ("Items", "NO_LABEL"),
            "storage": ("foreign_files", "is_index", "new_generation", "read_generation"),
            "validate": ("check_storage", "checked_ids"),
        },
    )

__all__ = [
    "METRICS", "NEVER", "NO_LABEL", "Cancel", "Encoded", "Filter", "GroupedVectors", "HashIndex",
    "Items", "SearchResult", "check_storage", "checked_ids", "encode_int8",
    "foreign_files", "is_index",
    "new_generation", "read_generation", "survivors", "warmup",
]  # fmt: skip
