"""One state of a table: index and catalog. How it is loaded, changed in memory, and saved."""

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
    """One state of a table. The index may be of another moment than a catalog that is written."""

    index: HashIndex
    catalog: Catalog


# -- files -----------------------------------------------------------------------------------------


def load_state(directory: Path, *, read_only: bool = False) -> tuple[State, int]:
    """Load index and catalog of one commit, and how many changes the index on disk lacked."""
    require_table(directory)
    if (directory / INDEX_DIR).is_symlink():  # what a link leads to would be written to
        raise StorageError(f"{directory / INDEX_DIR} must be a directory, and not a link")
    for _ in range(_RETRIES):
        catalog = Catalog.open(directory, read_only=read_only)
        try:
            index = HashIndex.load(directory / INDEX_DIR)
            assert index.generation is not None
            changes = catalog.changes_after(index.generation)
            if changes is not None:
                _check(index, catalog, directory)
                _apply(index, changes, directory)
                return State(index, catalog), len(changes)
            catalog.close()
            # Saved since the catalog was opened, unless it is unknown to the next one as well.
            again = Catalog.open(directory, read_only=True)
            unknown = again.changes_after(index.generation) is None
            again.close()
            if unknown and read_generation(directory / INDEX_DIR) == index.generation:
                raise StorageError(
                    f"{directory / INDEX_DIR} is not the index that belongs to {directory}",
                    hint="put the right index back, or build the table again",
                )
        except BaseException:
            catalog.close()
            raise
    raise StorageError(f"{directory} changes faster than it can be read", hint="try again")


def load_unreplaced(directory: Path, load: Callable[[], Loaded]) -> Loaded:
    """Call ``load``, again if another table took this one's place meanwhile: parts are of one."""
    for _ in range(_RETRIES):
        require_table(directory)
        before = _identity(directory)
        try:
            table = load()
        except StorageError:
            if _identity(directory) == before:
                raise
            continue
        if _identity(directory) == before:
            return table
        table.close()
    raise StorageError(f"{directory} is replaced faster than it can be read", hint="try again")


def _identity(directory: Path) -> tuple[int, int] | None:
    """What a table has for itself alone, as long as it is there."""
    try:
        status = (directory / DATABASE).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def model_path(path: Path) -> Path:
    """The directory of a model: the model itself, or that of a table."""
    return path / MODEL_DIR if (path / DATABASE).is_file() else path


def foreign_files(directory: Path) -> list[Path]:
    """What is in the directory of a table and is not a part of it: it is left alone."""
    ours = {INDEX_DIR, MODEL_DIR, *(DATABASE + suffix for suffix in ("", "-wal", "-shm"))}
    names = (p for p in directory.iterdir() if p.name not in ours and not is_payload_file(p.name))
    others = sorted(names)
    return others + foreign_in_index(directory / INDEX_DIR)


def _check(index: HashIndex, catalog: Catalog, directory: Path) -> None:
    """Refuse parts that do not fit together, though each may be sound."""
    if catalog.metric == "cosine" and not index.unit_length:
        raise CorruptIndexError(f"{directory} has metric='cosine', its vectors are of any length")


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
    """A state that is changed in memory, and on disk when it is saved.

    What belongs to the items is written into the database at once, within a transaction that
    lasts until it is saved: meanwhile nobody else can write.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._lock = threading.Lock()

    def change(self, prepare: Prepare) -> Change:
        """Make a change, as a whole or not at all."""
        with self._lock:
            index, catalog = self.state.index.copy(), self.state.catalog
            catalog.begin()
            with self._kept(catalog), catalog.change():
                change = prepare(State(index, catalog), index.next_id)
                apply_changes(index, [change])
                catalog.log(change)
            self.state = State(index, catalog)
            return change

    def create_index(self, field: str) -> None:
        """Keep an index of a field of the payload."""
        with self._lock:
            catalog = self.state.catalog
            catalog.begin()
            with self._kept(catalog), catalog.change():
                catalog.index_field(field)

    @contextmanager
    def _kept(self, catalog: Catalog) -> Iterator[None]:
        """See that what was changed before is there if a change fails."""
        try:
            yield
        except BaseException:
            if catalog.path is not None and not catalog.in_transaction:
                catalog.broken = "earlier changes could not be kept; load the table again"
            raise

    def lives_in(self, directory: Path) -> bool:
        """Whether this is the state of the table in a directory."""
        path = self.state.catalog.path
        return path is not None and path.parent == directory.resolve()  # as it was when loaded

    def save(self) -> None:
        """Save to where it was loaded from, unless others changed it since."""
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
        """Drop what was not saved, and let other writers in."""
        if self.state.catalog.path is not None:
            self.state.catalog.rollback()
            self.state.catalog.unlock()

    def close(self) -> None:
        """Close the database; what was not saved is dropped."""
        self.state.catalog.close()
