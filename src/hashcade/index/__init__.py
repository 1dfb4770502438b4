"""The index: a hash table with exact search in a few buckets; does not need torch."""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.index.blocks import Block
    from hashcade.index.bulk import BucketRange, MergePlan
    from hashcade.index.cancel import NEVER, Cancel
    from hashcade.index.checksums import Limits, wrong_labels, wrong_numbers, wrong_values
    from hashcade.index.distances import METRICS
    from hashcade.index.filters import Filter
    from hashcade.index.index import HashIndex, warmup
    from hashcade.index.nearest import GroupedVectors, nearest_to_one
    from hashcade.index.quantised import encode_int8, survivors
    from hashcade.index.search import Encoded, SearchResult
    from hashcade.index.segment import NO_LABEL, Items, NoCheck, Segment
    from hashcade.index.storage import foreign_files, is_index, new_generation, read_generation
    from hashcade.index.validate import check_storage, checked_ids
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "bulk": ("BucketRange", "MergePlan"),
            "blocks": ["Block"],
            "cancel": ("NEVER", "Cancel"),
            "distances": ["METRICS"],
            "checksums": ("Limits", "wrong_labels", "wrong_numbers", "wrong_values"),
            "filters": ["Filter"],
            "index": ("HashIndex", "warmup"),
            "nearest": ("GroupedVectors", "nearest_to_one"),
            "quantised": ("encode_int8", "survivors"),
            "search": ("Encoded", "SearchResult"),
            "segment": ("Items", "NO_LABEL", "NoCheck", "Segment"),
            "storage": ("foreign_files", "is_index", "new_generation", "read_generation"),
            "validate": ("check_storage", "checked_ids"),
        },
    )

__all__ = [
    "METRICS", "NEVER", "NO_LABEL", "Block", "BucketRange", "Cancel", "Encoded", "Filter",
    "GroupedVectors", "HashIndex", "Items", "Limits", "MergePlan", "NoCheck", "SearchResult",
    "Segment", "check_storage", "checked_ids", "encode_int8", "foreign_files", "is_index",
    "nearest_to_one", "new_generation", "read_generation", "survivors", "warmup",
    "wrong_labels", "wrong_numbers", "wrong_values",
]  # fmt: skip
