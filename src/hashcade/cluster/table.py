"""A table in Redis, open for searches on a query node."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import numpy.typing as npt

from hashcade._validate import checked_count
from hashcade.errors import ClusterError, HashcadeError, StorageError
from hashcade.index import Cancel, Encoded
from hashcade.learn import Hasher, model_fingerprint
from hashcade.results import Item, Matches
from hashcade.store import DATABASE, INDEX_DIR, MODEL_DIR, Catalog, Ids
from hashcade.table import HashTable

from .cache import RemoteBlocks
from .changes import Stream, applied
from .generations import COMPLETE, NODE_SECONDS, Generations
from .manifest import Manifest
from .reader import Reader
from .remote_index import RemoteIndex

log = logging.getLogger("hashcade.cluster")

_POLL_SECONDS = 1.0
_WAIT_SECONDS = 5.0  # for a change that a search must see


@dataclass(frozen=True, eq=False)
class _Loaded:
    """A generation on this query node."""

    manifest: Manifest
    table: HashTable
    blocks: RemoteBlocks
    catalog: Catalog  # the one that is written; the table has what was committed
    sequence: int  # number of the last change it has
    stream: Stream | None  # of further changes


class ClusterTable:
    """A table that was published into a Redis Cluster, open for searches.

    Made by :meth:`open`. It is searched as a :class:`HashTable` is, with the same results. The
    vectors stay in Redis: a search fetches the buckets it looks into, and keeps them up to a limit.
    Ids, names, labels and payload are in a copy of ``items.db`` on the local disk. When another
    generation is activated, or the table is changed, searches that begin a second later see it;
    each search sees one state as a whole.

    Attributes
    ----------
    generation : str
        The generation that is searched.
    failure : str or None
        Why the last look for something newer failed; searches go on with what there is.
    lag : int
        Changes that are known to be made and are not here, because some before them are missing.
    """

    def __init__(
        self,
        reader: Reader,
        name: str,
        cache_bytes: int,
        cache_dir: Path | None,
        model: Path | None,
        networks: dict[str, Any],
    ) -> None:
        self._generations = Generations(reader, name)
        self._cache_bytes, self._cache_dir = cache_bytes, cache_dir
        self._model, self._networks = model, networks
        self._node = uuid4().hex
        # Also those that searches still use.
        self._loaded: dict[str, weakref.ref[RemoteBlocks]] = {}
        self._refreshing = threading.Lock()
        self._registered = 0.0
        self.failure: str | None = None
        self.lag = 0
        self._current = self._load(self._generations.require_current())
        self._closing = threading.Event()
        self._poller = threading.Thread(
            target=_poll, args=(weakref.ref(self), self._closing), name="hashcade-poll", daemon=True
        )
        self._poller.start()

    @classmethod
    def open(
        cls,
        url: str,
        *,
        name: str,
        cache_bytes: int = 1 << 30,
        cache_dir: str | os.PathLike[str] | None = None,
        model: str | os.PathLike[str] | None = None,
        timeout: float = 0.1,
        username: str | None = None,
        password: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        **networks: Any,
    ) -> ClusterTable:
        """Open the current generation of a published table.

        Parameters
        ----------
        url, timeout, username, password, ca_file
            The cluster, as for :class:`Reader`.
        name
            What it was published as.
        cache_bytes
            Bytes of vectors that are kept. Ids, item numbers and labels that were read stay
            besides, up to 20 bytes an entry.
        cache_dir
            Where the copy of ``items.db`` is put; by default where temporary files are.
        model
            A model on this machine, which must be the one of the table. By default it is fetched.
        networks
            ``backbone`` and ``features`` of your own, as for :meth:`Hasher.load`.
        """
        cache_bytes = checked_count("cache_bytes", cache_bytes, at_least=0)
        reader = Reader(url, timeout=timeout, username=username, password=password, ca_file=ca_file)
        try:
            folder, local = (None if p is None else Path(p) for p in (cache_dir, model))
            return cls(reader, name, cache_bytes, folder, local, networks)
        except BaseException:
            reader.close()
            raise

    # -- generations -------------------------------------------------------------------------------

    def _load(self, generation: str) -> _Loaded:
        """Fetch what a node has of a generation: all but the blocks."""
        self._generations.register(generation, self._node)
        state = self._generations.states().get(generation)
        if state != COMPLETE:  # else it is being deleted
            raise ClusterError(f"generation {generation!r} is {state or 'not there'}")
        manifest = self._generations.manifest(generation)
        blocks = RemoteBlocks(self._generations, manifest, self._cache_bytes)
        folder = Path(tempfile.mkdtemp(prefix="hashcade-", dir=self._cache_dir))
        try:
            hasher = self._load_model(manifest, folder)
            self._fetch_file(manifest, DATABASE, folder)
            (folder / INDEX_DIR).mkdir()  # its lock is there
            catalog = Catalog.open(folder)
            shown = catalog.snapshot()
            index = RemoteIndex.of_generation(manifest, blocks, shown.label_codes_of)
            if catalog.metric == "cosine" and not index.unit_length:
                raise ClusterError(f"generation {generation!r} contradicts itself")
            table = HashTable.from_parts(hasher, index, shown)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        stream = Stream(self._generations, manifest.lineage) if manifest.lineage else None
        weakref.finalize(blocks, shutil.rmtree, folder, ignore_errors=True)
        self._loaded[generation] = weakref.ref(blocks)
        return self._followed(_Loaded(manifest, table, blocks, catalog, manifest.sequence, stream))

    def _followed(self, loaded: _Loaded, *, at_master: bool = False) -> _Loaded:
        """The generation with the changes that have come since."""
        while loaded.stream is not None:
            entries = loaded.stream.entries_after(loaded.sequence, at_master=at_master)
            if not entries:
                break
            last = loaded.sequence
            for entry in entries:
                if entry.first > last + 1:
                    self.lag = entries[-1].last - loaded.sequence
                    raise ClusterError(
                        f"changes {last + 1} to {entry.first - 1} are missing in Redis",
                        hint="let the writer send them again: hashcade.cluster.Writer.resend",
                    )
                last = entry.last
            index = loaded.table.index
            assert isinstance(index, RemoteIndex)
            index = applied(index, loaded.catalog, entries)
            shown = loaded.catalog.snapshot()
            index.codes_of = shown.label_codes_of
            table = HashTable.from_parts(loaded.table.hasher, index, shown)
            loaded = replace(loaded, table=table, sequence=last)
        self.lag = 0
        return loaded

    def _load_model(self, manifest: Manifest, folder: Path) -> Hasher | None:
        place = self._model
        if place is None:
            if manifest.model is None:
                return None
            place = folder / MODEL_DIR
            place.mkdir()
            for name in manifest.files:
                if name.startswith(f"{MODEL_DIR}/"):
                    self._fetch_file(manifest, name, folder)
        actual = model_fingerprint(place)
        if actual != manifest.model:
            raise StorageError(
                f"the model {place} is not the one of the table: its fingerprint is "
                f"{actual[:12]}, must be {str(manifest.model)[:12]}",
                hint="leave model out to fetch the right one",
            )
        return Hasher.load(place, **self._networks)

    def _fetch_file(self, manifest: Manifest, name: str, folder: Path) -> None:
        with (folder / name).open("xb") as file:
            for part in self._generations.file(manifest, name):
                file.write(part)

    def refresh(self) -> bool:
        """Look for a newer generation and for changes now; it is done every second too.

        Returns whether there was another generation.
        """
        with self._refreshing:
            wanted = self._generations.require_current()
            new = wanted != self.generation
            self._current = self._load(wanted) if new else self._followed(self._current)
            if new or time.monotonic() - self._registered > NODE_SECONDS / 3:
                self._loaded = {g: ref for g, ref in self._loaded.items() if ref() is not None}
                for generation in self._loaded:
                    self._generations.register(generation, self._node)
                self._registered = time.monotonic()
            self.failure = None
            return new

    @property
    def generation(self) -> str:
        """Name of the generation that is searched."""
        return self._current.manifest.generation

    @property
    def sequence(self) -> int:
        """Number of the last change that is here."""
        return self._current.sequence

    def follow(self) -> int:
        """Look for changes now, at the master, and return the number of the last one here."""
        with self._refreshing:
            self._current = self._followed(self._current, at_master=True)
        return self.sequence

    def _wait_for(self, sequence: int) -> None:
        end = time.monotonic() + _WAIT_SECONDS
        while self.follow() < sequence:
            if time.monotonic() > end:
                raise ClusterError(
                    f"change {sequence} has not arrived, the last one here is {self.sequence}",
                    hint="see that the writer reaches Redis",
                )
            time.sleep(0.01)

    @property
    def manifest(self) -> Manifest:
        """What the generation consists of."""
        return self._current.manifest

    @property
    def cache(self) -> RemoteBlocks:
        """The blocks that are here: how many bytes, and how many were fetched and dropped."""
        return self._current.blocks

    @property
    def reader(self) -> Reader:
        """The connection to Redis, with its metrics."""
        return self._generations.reader

    @property
    def table(self) -> HashTable:
        """The generation as it is now, as a table: one state, whatever is activated later."""
        return self._current.table

    # -- searching ---------------------------------------------------------------------------------

    def search(
        self,
        Q: npt.ArrayLike | Encoded,
        n_neighbors: int = 10,
        *,
        n_probe: int = 1,
        max_candidates: int | None = None,
        fill: bool = True,
        where: Any = None,
        filter_ids: Any = None,
        exclude_self: Any = False,
        threads: int | None = None,
        cancel: Cancel | None = None,
        min_sequence: int | None = None,
    ) -> Matches:
        """Find the nearest items, as :meth:`HashTable.search` does.

        Filters, ``exclude_self``, ``max_candidates`` and tables with sparsity > 1 need the ids of
        all entries, which are fetched once: 8 to 12 bytes each; so do changes. ``min_sequence`` is
        the number of a change (``Writer.sequence``) that the answer must have seen: if it is not
        here, it is fetched, and after five seconds it is an error.
        """
        if min_sequence is not None and self.sequence < min_sequence:
            self._wait_for(min_sequence)
        return self._current.table.search(
            Q, n_neighbors, n_probe=n_probe, max_candidates=max_candidates, fill=fill, where=where,
            filter_ids=filter_ids, exclude_self=exclude_self, threads=threads, cancel=cancel,
        )  # fmt: skip

    def encode(self, X: npt.ArrayLike | Encoded, **options: Any) -> Encoded:
        """What the model makes of items; see :meth:`HashTable.encode`."""
        return self.table.encode(X, **options)

    def explain(self, q: npt.ArrayLike | Encoded, **options: Any) -> dict[str, Any]:
        """Say how the results of one query came about; see :meth:`HashTable.explain`."""
        return self.table.explain(q, **options)

    def stats(self) -> dict[str, Any]:
        """Describe the table in numbers; see :meth:`HashTable.stats`. Fetches ids and labels."""
        return self.table.stats()

    def ids(self, where: Any = None) -> Ids:
        """Ids of all items, or of those for which a filter holds."""
        return self.table.ids(where)

    def count(self, where: Any = None) -> int:
        """Number of items, or of those for which a filter holds."""
        return self.table.count(where)

    def __getitem__(self, item_id: int | str) -> Item:
        return self.table[item_id]

    def __contains__(self, item_id: int | str) -> bool:
        return item_id in self.table

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        name, generation = self._generations.keys.name, self.generation
        return f"ClusterTable({name!r}, generation {generation}, {len(self)} items)"

    # -- changes -----------------------------------------------------------------------------------

    def add(self, *args: Any, **options: Any) -> Any:
        """Refused: a table is changed where it was published from."""
        raise _read_only()

    def upsert(self, *args: Any, **options: Any) -> Any:
        """Refused, as :meth:`add`."""
        raise _read_only()

    def remove(self, *args: Any, **options: Any) -> Any:
        """Refused, as :meth:`add`."""
        raise _read_only()

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop looking for newer generations, and close the connections."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._poller.join()
        try:
            for generation in self._loaded:
                self._generations.unregister(generation, self._node)
        except ClusterError:
            pass  # it is forgotten in half a minute
        self._current.table.close()
        self._current.catalog.close()
        self.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_only() -> ValueError:
    return ValueError(
        "a ClusterTable is for searching: change the table that was published, with "
        "hashcade.cluster.Writer"
    )


def _poll(table: weakref.ref[ClusterTable], closing: threading.Event) -> None:
    """Look for newer generations, until the table is closed or nobody has it any more."""
    while not closing.wait(_POLL_SECONDS):
        alive = table()
        if alive is None:
            return
        try:
            alive.refresh()
        except HashcadeError as error:
            if str(error) != alive.failure:
                log.warning("nothing newer can be used: %s", error)
            alive.failure = str(error)
        del alive
