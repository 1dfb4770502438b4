"""Neighbours for scikit-learn: a learned table in the place of ``KNeighborsTransformer``.

- :class:`HashNeighborsTransformer`: learns, builds, and gives graphs of nearest neighbours.

Needs the extra ``neighbors`` (torch and scikit-learn).
"""

from typing import TYPE_CHECKING

from hashcade._extras import require_extra
from hashcade._lazy import lazy_names

require_extra("sklearn", "neighbors")

if TYPE_CHECKING:
    from hashcade.neighbors._transformer import HashNeighborsTransformer
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__, {"HashNeighborsTransformer": "hashcade.neighbors._transformer"}
    )

__all__ = ["HashNeighborsTransformer"]
