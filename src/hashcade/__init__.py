"""hashcade learns a hash table for similarity search.

The public names are listed in ``__all__`` and imported when first used, so that
``import hashcade`` alone imports neither numpy nor numba nor torch.
"""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names
from hashcade._version import __version__
from hashcade.errors import (
    Cancelled,
    ClusterError,
    ConfigError,
    CorruptIndexError,
    DataError,
    HashcadeError,
    IncompatibleFormatError,
    IndexLockedError,
    NotFittedError,
    StorageError,
)

if TYPE_CHECKING:
    from hashcade.codes import (
        CodeShape,
        code_energy,
        expected_speedup,
        relabel_by_code,
        solve_cascade,
        solve_level,
    )
    from hashcade.index import Cancel, HashIndex, SearchResult
    from hashcade.learn import Hasher
    from hashcade.results import Match, Matches
    from hashcade.table import HashTable
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "codes": (
                "CodeShape",
                "code_energy",
                "expected_speedup",
                "relabel_by_code",
                "solve_cascade",
                "solve_level",
            ),
            "index": ("Cancel", "HashIndex", "SearchResult"),
            "learn": ["Hasher"],
            "results": ("Match", "Matches"),
            "table": ["HashTable"],
        },
    )

__all__ = [
    "Cancel", "Cancelled", "ClusterError", "CodeShape", "ConfigError", "CorruptIndexError",
    "DataError", "HashIndex", "HashTable", "HashcadeError", "Hasher", "IncompatibleFormatError",
    "IndexLockedError", "Match", "Matches", "NotFittedError", "SearchResult", "StorageError",
    "__version__", "code_energy", "expected_speedup", "relabel_by_code", "solve_cascade",
    "solve_level",
]  # fmt: skip
