"""What belongs to the items of a table beside their vectors, and how it stays on disk.

- :class:`Catalog`: which label and which name belong to the numbers in an index.
- :class:`DurableIndex`: index and catalog of a table, open for changes that last.
- :func:`load_state`, :func:`save_state`: the same without a service, for one change at a time.
- :func:`pending_changes`: how many acknowledged changes are not saved into the index yet.
"""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.store.catalog import INDEX_DIR, MODEL_DIR, Catalog, Label
    from hashcade.store.change_log import Position
    from hashcade.store.durable import BusyError, DurableIndex, ReadOnlyError
    from hashcade.store.state import State, load_state, pending_changes, save_state
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "BusyError": "hashcade.store.durable",
            "Catalog": "hashcade.store.catalog",
            "DurableIndex": "hashcade.store.durable",
            "INDEX_DIR": "hashcade.store.catalog",
            "Label": "hashcade.store.catalog",
            "MODEL_DIR": "hashcade.store.catalog",
            "Position": "hashcade.store.change_log",
            "ReadOnlyError": "hashcade.store.durable",
            "State": "hashcade.store.state",
            "load_state": "hashcade.store.state",
            "pending_changes": "hashcade.store.state",
            "save_state": "hashcade.store.state",
        },
    )

__all__ = [
    "INDEX_DIR",
    "MODEL_DIR",
    "BusyError",
    "Catalog",
    "DurableIndex",
    "Label",
    "Position",
    "ReadOnlyError",
    "State",
    "load_state",
    "pending_changes",
    "save_state",
]
