"""One state of a table on disk: index and catalog, with every change that was acknowledged."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hashcade.errors import StorageError
from hashcade.index import HashIndex, new_generation, read_generation
from hashcade.store.catalog import INDEX_DIR, Catalog, require_table
from hashcade.store.change_log import (
    Add,
    Change,
    ChangeLog,
    Position,
    position,
    read_changes,
    read_files,
)


@dataclass(frozen=True, eq=False)
class State:
    """One state of a table. Nothing in it changes."""

    index: HashIndex
    catalog: Catalog


def load_state(directory: Path) -> tuple[State, Position]:
    """Load index and catalog of a table with the changes in its log; nothing is written.

    The position says which state this was, for :func:`save_state`.
    """
    require_table(directory)

    def load() -> State:  # the catalog last: it only grows, so it has all classes of the log
        return State(HashIndex.load(directory / INDEX_DIR), Catalog.read(directory))

    changes, end, state = read_changes(directory / INDEX_DIR, load)
    apply_changes(state.index, state.catalog, changes)
    return state, end


def save_state(directory: Path, state: State, loaded: Position) -> Position:
    """Save index and catalog to where they were loaded from, unless others changed it since."""
    with closing(ChangeLog(directory / INDEX_DIR)) as change_log:
        files = read_files(change_log.folder)
        if position(read_generation(directory / INDEX_DIR), files) != loaded:
            raise StorageError(
                f"{directory} was changed by another writer since it was loaded",
                hint="load it again, and repeat the change",
            )
        state.catalog.write(directory)  # first: it only grows, so it also fits the state before
        following = new_generation()
        number = change_log.begin(loaded[0], following) if files else None
        state.index.save(directory / INDEX_DIR, generation=following, lock_held=True)
        if number is not None:
            change_log.drop_before(number + 1)
        return following, ()


def pending_changes(directory: Path) -> int:
    """How many changes wait in the log of a table, which may be served meanwhile."""
    require_table(directory)
    return len(read_changes(directory / INDEX_DIR, lambda: None)[0])


def apply_changes(index: HashIndex, catalog: Catalog, changes: list[Change]) -> None:
    """Bring an index to the state after changes, of which it may have a part already.

    The last change that names an item decides.
    """
    final: dict[int, tuple[Add, int] | None] = {}
    for change in changes:
        for row, item in enumerate(change.ids.tolist()):
            final.pop(item, None)  # so that items come in the order of their last addition
            final[item] = (change, row) if isinstance(change, Add) else None
    named = np.fromiter(final, dtype=np.int64, count=len(final))
    index.remove(named[index.contains(named)] if len(named) else named)
    rows = [entry for entry in final.values() if entry is not None]
    if rows:
        ids = [int(add.ids[row]) for add, row in rows]
        labels = [int(add.labels[row]) for add, row in rows if add.labels is not None]
        index.add(
            np.stack([add.bucket_ids[row] for add, row in rows]),
            np.stack([add.vectors[row] for add, row in rows]),
            ids,
            labels or None,
        )
        catalog.forget_names(ids)
    # Also those that are gone again have used their ids up.
    highest = (int(c.ids.max()) for c in changes if isinstance(c, Add) and len(c.ids))
    index.reserve_ids(max(highest, default=-1) + 1)
