"""Metadata of the items of a table, and durable storage of both metadata and index.

- :class:`Catalog`: ids, labels, names and payload behind the item numbers of an index; filters.
- :class:`Local`: index and catalog that are changed in memory and saved explicitly.
- :class:`DurableIndex`: index and catalog that are on disk after each change.
- :func:`load_state`, :func:`write_state`: read and write one state of a table directory.
"""

from hashcade.store.catalog import MODEL_DIR, PLACES, Catalog
from hashcade.store.changes import (
    Add,
    Answer,
    Change,
    Key,
    Remove,
    apply_changes,
    from_record,
)
from hashcade.store.database import DATABASE, refuse_foreign, stoppable
from hashcade.store.descriptions import Ids
from hashcade.store.durable import BusyError, DurableIndex, NewItems, removal
from hashcade.store.ids import Label, label_array, plain_ids
from hashcade.store.payload import payload_texts, plain_value
from hashcade.store.payload_file import warmup
from hashcade.store.rows import ItemRow, item_rows
from hashcade.store.saving import ReadOnlyError
from hashcade.store.state import (
    Local,
    State,
    foreign_files,
    load_state,
    load_unreplaced,
    model_path,
    write_state,
)
from hashcade.store.transactions import INDEX_DIR

__all__ = [
    "DATABASE", "INDEX_DIR", "MODEL_DIR", "PLACES", "Add", "Answer", "BusyError", "Catalog",
    "Change", "DurableIndex", "Ids", "ItemRow", "Key", "Label", "Local", "NewItems",
    "ReadOnlyError", "Remove", "State", "apply_changes", "foreign_files", "from_record",
    "item_rows", "label_array", "load_state", "load_unreplaced", "model_path", "payload_texts",
    "plain_ids", "plain_value", "refuse_foreign", "removal", "stoppable", "warmup", "write_state",
]  # fmt: skip
