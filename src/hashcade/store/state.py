"""A consistent state of a table (index and catalog): loading, changing in memory, saving."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from hashcade.errors import CorruptIndexError, StorageError
from hashcade.index import HashIndex, new_generation, read_generation
from hashcade.index import foreign_files as foreign_in_index
from hashcade.store.catalog import MODEL_DIR, Catalog
from hashcade.store.changes import Change, Prepare, apply_changes
from hashcade.store.database import DATABASE, require_table
from hashcade.store.payload_file import is_payload_file
from hashcade.store.transactions import INDEX_DIR

_RETRIES = 100


class _Closable(Protocol):
    def close(self) -> None: ...


Loaded = TypeVar("Loaded", bound=_Closable)


@dataclass(frozen=True, eq=False)
class State:
    """One state of a table. A catalog that is being written may be ahead of the index."""

    index: HashIndex
    catalog: Catalog


# -- files -----------------------------------------------------------------------------------------


def load_state(directory: Path, *, read_only: bool = False) -> tuple[State, int]:
    """Load index and catalog of one commit; also returns how many changes the index lacked."""
    require_table(directory)
    if (directory / INDEX_DIR).is_symlink():  # would write to the target of the link
        raise StorageError(f"{directory / INDEX_DIR} must be a directory, and not a link")
    for _ in range(_RETRIES):
        catalog = Catalog.open(directory, read_only=read_only)
        try:
            index = HashIndex.load(directory / INDEX_DIR)
            assert index.generation is not None
            changes = catalog.changes_after(index.generation)
            if changes is not None:
                if catalog.metric == "cosine" and not index.unit_length:
                    message = f"{directory} has metric='cosine', its vectors are of any length"
                    raise CorruptIndexError(message)
                _apply(index, changes, directory)
                return State(index, catalog), len(changes)
            catalog.close()
            # Saved since the catalog was opened, unless a newer one does not know it either.
            newer = Catalog.open(directory, read_only=True)
            is_unknown = newer.changes_after(index.generation) is None
            newer.close()
            if is_unknown and read_generation(directory / INDEX_DIR) == index.generation:
                raise StorageError(
                    f"{directory / INDEX_DIR} is not the index that belongs to {directory}",
                    hint="put the right index back, or build the table again",
                )
        except BaseException:
            catalog.close()
            raise
    raise StorageError(f"{directory} changes faster than it can be read", hint="try again")


def load_unreplaced(directory: Path, load: Callable[[], Loaded]) -> Loaded:
    """Call ``load``, and retry if the table was replaced meanwhile, so that all parts match."""
    for _ in range(_RETRIES):
        require_table(directory)
        identity = _identity(directory)
        try:
            table = load()
        except StorageError:
            if _identity(directory) == identity:
                raise
            continue
        if _identity(directory) == identity:
            return table
        table.close()
    raise StorageError(f"{directory} is replaced faster than it can be read", hint="try again")


def _identity(directory: Path) -> tuple[int, int] | None:
    """Device and inode of the database of a table; None if it is missing."""
    try:
        status = (directory / DATABASE).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def model_path(path: Path) -> Path:
    """The directory of a model: ``path`` itself, or that of the model of a table."""
    return path / MODEL_DIR if (path / DATABASE).is_file() else path


def foreign_files(directory: Path) -> list[Path]:
    """Files in the directory of a table that are not part of it; they are left alone."""
    names = {INDEX_DIR, MODEL_DIR, *(DATABASE + suffix for suffix in ("", "-wal", "-shm"))}
    files = sorted(path for path in directory.iterdir() if path.name not in names)
    foreign = [path for path in files if not is_payload_file(path.name)]
    return foreign + foreign_in_index(directory / INDEX_DIR)


def _apply(index: HashIndex, changes: list[Change], directory: Path) -> None:
    try:
        apply_changes(index, changes)
    except (ValueError, IndexError) as error:
        raise CorruptIndexError(f"{directory}: a change does not fit the index: {error}") from None


def write_state(directory: Path, state: State) -> None:
    """Write a state into a new directory."""
    generation = new_generation()
    state.catalog.write(directory, generation)
    state.index.copy().save(directory / INDEX_DIR, generation=generation)


class Local:
    """A state that is changed in memory, and on disk only when it is saved.

    Metadata is written to the database at once, within a transaction that lasts until the state is
    saved: meanwhile there can be no other writer.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._lock = threading.Lock()

    def change(self, prepare: Prepare) -> Change:
        """Make a change, completely or not at all."""
        with self._lock:
            index, catalog = self.state.index.copy(), self.state.catalog
            catalog.begin()
            with self._require_transaction(catalog), catalog.change():
                change = prepare(State(index, catalog), index.next_id)
                apply_changes(index, [change])
                catalog.log(change)
            self.state = State(index, catalog)
            return change

    def create_index(self, field: str) -> None:
        """Create an index of a payload field."""
        with self._lock:
            catalog = self.state.catalog
            catalog.begin()
            with self._require_transaction(catalog), catalog.change():
                catalog.index_field(field)

    @contextmanager
    def _require_transaction(self, catalog: Catalog) -> Iterator[None]:
        """Mark the catalog as broken if a failed change made SQLite roll back earlier ones."""
        try:
            yield
        except BaseException:
            if catalog.path is not None and not catalog.in_transaction:
                catalog.broken = "earlier changes could not be kept; load the table again"
            raise

    def lives_in(self, directory: Path) -> bool:
        """Whether this state was loaded from the directory."""
        path = self.state.catalog.path
        return path is not None and path.parent == directory.resolve()  # resolved when loaded

    def save(self) -> None:
        """Save to the directory it was loaded from, unless another writer changed it since."""
        with self._lock:
            index, catalog = self.state.index, self.state.catalog
            assert catalog.path is not None
            catalog.begin()
            generation, committed = new_generation(), False
            try:
                last = catalog.announce(generation)
                catalog.commit()
                committed = True
                catalog.write_payload(generation)
                index.save(catalog.path.parent / INDEX_DIR, generation=generation, lock_held=True)
                catalog.begin()
                catalog.forget_changes(generation, last)
                catalog.commit()
                catalog.open_payload()
            finally:
                catalog.rollback()
                if not committed and catalog.broken is None:
                    catalog.broken = "changes could not be saved; load the table again"
                catalog.begin_reading()
                catalog.unlock()

    def release(self) -> None:
        """Drop unsaved changes, and release the writer lock."""
        if self.state.catalog.path is not None:
            self.state.catalog.rollback()
            self.state.catalog.unlock()

    def close(self) -> None:
        """Close the database; unsaved changes are dropped."""
        self.state.catalog.close()
