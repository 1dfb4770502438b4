"""What belongs to the items of a table beside their vectors, and how it stays on disk.

- :class:`Catalog`: which label and which name belong to the numbers in an index.
- :class:`DurableIndex`: index and catalog of a table, open for changes that last.
- :func:`load_state`, :func:`save_state`: the same without a service, for one change at a time.
- :func:`pending_changes`: how many acknowledged changes are not saved into the index yet.
"""

from hashcade.store.catalog import INDEX_DIR, MODEL_DIR, Catalog, Label
from hashcade.store.change_log import Position
from hashcade.store.durable import BusyError, DurableIndex, ReadOnlyError
from hashcade.store.state import State, load_state, pending_changes, save_state

__all__ = [
    "INDEX_DIR", "MODEL_DIR", "BusyError", "Catalog", "DurableIndex", "Label", "Position",
    "ReadOnlyError", "State", "load_state", "pending_changes", "save_state",
]  # fmt: skip
