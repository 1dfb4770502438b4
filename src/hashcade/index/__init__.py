"""The index: a hash table for exact search among the items of a few buckets; never needs torch."""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.index.blocks import Block
    from hashcade.index.bulk import BucketRange, MergePlan
    from hashcade.index.cancel import NEVER, Cancel
    from hashcade.index.checksums import Limits, wrong_labels, wrong_numbers, wrong_values
    from hashcade.index.encoded import Encoded
    from hashcade.index.filters import Filter
    from hashcade.index.index import HashIndex, warmup
    from hashcade.index.nearest import GroupedVectors
    from hashcade.index.search import METRICS, SearchResult
    from hashcade.index.segment import NO_LABEL, Items, NoCheck, Segment
    from hashcade.index.storage import foreign_files, is_index, new_generation, read_generation
    from hashcade.index.validate import checked_ids
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "bulk": ("BucketRange", "MergePlan"),
            "blocks": ["Block"],
            "cancel": ("NEVER", "Cancel"),
            "checksums": ("Limits", "wrong_labels", "wrong_numbers", "wrong_values"),
            "encoded": ["Encoded"],
            "filters": ["Filter"],
            "index": ("HashIndex", "warmup"),
            "nearest": ["GroupedVectors"],
            "search": ("METRICS", "SearchResult"),
            "segment": ("Items", "NO_LABEL", "NoCheck", "Segment"),
            "storage": ("foreign_files", "is_index", "new_generation", "read_generation"),
            "validate": ["checked_ids"],
        },
    )

__all__ = [
    "METRICS", "NEVER", "NO_LABEL", "Block", "BucketRange", "Cancel", "Encoded", "Filter",
    "GroupedVectors", "HashIndex", "Items", "Limits", "MergePlan", "NoCheck", "SearchResult",
    "Segment", "checked_ids", "foreign_files", "is_index", "new_generation", "read_generation",
    "warmup", "wrong_labels", "wrong_numbers", "wrong_values",
]  # fmt: skip
