"""A published table, open for searches on a query node."""

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
from .changes import Stream, apply_entries
from .generations import COMPLETE, NODE_SECONDS, Generations
from .manifest import Manifest
from .reader import Reader
from .remote_index import RemoteIndex

log = logging.getLogger("hashcade.cluster")

_POLL_SECONDS = 1.0
_WAIT_SECONDS = 5.0  # for a change that a search requires


@dataclass(frozen=True, eq=False)
class _Generation:
    """A generation on this query node."""

    manifest: Manifest
    table: HashTable
    blocks: RemoteBlocks
    catalog: Catalog  # for writing; the table has a snapshot of its last commit
    sequence: int  # number of the last change included
    stream: Stream | None  # of later changes


class ClusterTable:
    """A table that was published into a Redis Cluster, open for searches.

    Created by :meth:`open`. It is searched like a :class:`HashTable`, with the same results. The
    vectors stay in Redis: a search fetches the buckets it needs, and caches them up to a limit.
    Ids, names, labels and payload are in a copy of ``items.db`` on the local disk. A newly
    activated generation, or a change of the table, is visible to searches within a second; each
    search sees one consistent state.

    Attributes
    ----------
    generation : str
        The current generation.
    failure : str or None
        Why the last refresh failed; searches continue with the state before.
    lag : int
        Changes that cannot be applied because earlier ones are missing in Redis.
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
        # Also older generations that searches still use.
        self._blocks: dict[str, weakref.ref[RemoteBlocks]] = {}
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
            The name that it was published under.
        cache_bytes
            Bytes of vectors to cache, in addition to the ids, item numbers and labels that were
            read: up to 20 bytes per entry.
        cache_dir
            Directory for the copy of ``items.db``; by default that of temporary files.
        model
            A local copy of the table's model. By default it is fetched.
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

    def _load(self, generation: str) -> _Generation:
        """Fetch everything of a generation but the blocks, and apply the changes since."""
        self._generations.register(generation, self._node)
        state = self._generations.states().get(generation)
        if state != COMPLETE:  # it may be being deleted
            raise ClusterError(f"generation {generation!r} is {state or 'not there'}")
        manifest = self._generations.manifest(generation)
        blocks = RemoteBlocks(self._generations, manifest, self._cache_bytes)
        folder = Path(tempfile.mkdtemp(prefix="hashcade-", dir=self._cache_dir))
        try:
            hasher = self._load_model(manifest, folder)
            self._fetch_file(manifest, DATABASE, folder)
            (folder / INDEX_DIR).mkdir()  # has the writer lock
            catalog = Catalog.open(folder)
            snapshot = catalog.snapshot()
            index = RemoteIndex.of_generation(manifest, blocks, snapshot.label_codes_of)
            if catalog.metric == "cosine" and not index.unit_length:
                raise ClusterError(f"generation {generation!r} contradicts itself")
            table = HashTable.from_parts(hasher, index, snapshot)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        stream = Stream(self._generations, manifest.lineage) if manifest.lineage else None
        weakref.finalize(blocks, shutil.rmtree, folder, ignore_errors=True)
        self._blocks[generation] = weakref.ref(blocks)
        current = _Generation(manifest, table, blocks, catalog, manifest.sequence, stream)
        return self._catch_up(current)

    def _catch_up(self, current: _Generation, *, at_master: bool = False) -> _Generation:
        """Apply the changes in the stream to a generation."""
        while current.stream is not None:
            entries = current.stream.entries_after(current.sequence, at_master=at_master)
            if not entries:
                break
            last = current.sequence
            for entry in entries:
                if entry.first > last + 1:
                    self.lag = entries[-1].last - current.sequence
                    raise ClusterError(
                        f"changes {last + 1} to {entry.first - 1} are missing in Redis",
                        hint="let the writer send them again: hashcade.cluster.Writer.resend",
                    )
                last = entry.last
            index = current.table.index
            assert isinstance(index, RemoteIndex)
            index = apply_entries(index, current.catalog, entries)
            snapshot = current.catalog.snapshot()
            index.codes_of = snapshot.label_codes_of
            table = HashTable.from_parts(current.table.hasher, index, snapshot)
            current = replace(current, table=table, sequence=last)
        self.lag = 0
        return current

    def _load_model(self, manifest: Manifest, folder: Path) -> Hasher | None:
        path = self._model
        if path is None:
            if manifest.model is None:
                return None
            path = folder / MODEL_DIR
            path.mkdir()
            for name in manifest.files:
                if name.startswith(f"{MODEL_DIR}/"):
                    self._fetch_file(manifest, name, folder)
        actual = model_fingerprint(path)
        if actual != manifest.model:
            raise StorageError(
                f"the model {path} is not the one of the table: its fingerprint is "
                f"{actual[:12]}, must be {str(manifest.model)[:12]}",
                hint="leave model out to fetch the right one",
            )
        return Hasher.load(path, **self._networks)

    def _fetch_file(self, manifest: Manifest, name: str, folder: Path) -> None:
        with (folder / name).open("xb") as file:
            for part in self._generations.file(manifest, name):
                file.write(part)

    def refresh(self) -> bool:
        """Check for a new generation and for changes now, as is also done every second.

        Returns whether there was a new generation.
        """
        with self._refreshing:
            generation = self._generations.require_current()
            is_new = generation != self.generation
            self._current = self._load(generation) if is_new else self._catch_up(self._current)
            if is_new or time.monotonic() - self._registered > NODE_SECONDS / 3:
                self._blocks = {g: ref for g, ref in self._blocks.items() if ref() is not None}
                for generation in self._blocks:
                    self._generations.register(generation, self._node)
                self._registered = time.monotonic()
            self.failure = None
            return is_new

    @property
    def generation(self) -> str:
        """Name of the current generation."""
        return self._current.manifest.generation

    @property
    def sequence(self) -> int:
        """Number of the last change that was applied."""
        return self._current.sequence

    def follow(self) -> int:
        """Fetch changes from the master now, and return the number of the last one."""
        with self._refreshing:
            self._current = self._catch_up(self._current, at_master=True)
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
        """The manifest of the generation."""
        return self._current.manifest

    @property
    def cache(self) -> RemoteBlocks:
        """The block cache, with its metrics."""
        return self._current.blocks

    @property
    def reader(self) -> Reader:
        """The Redis client, with its metrics."""
        return self._generations.reader

    @property
    def table(self) -> HashTable:
        """The current state as a table, which does not change when another one is activated."""
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

        Filters, ``exclude_self``, ``max_candidates``, tables with sparsity > 1 and changes need the
        ids of all entries, which are fetched once: 8 to 12 bytes per entry. ``min_sequence`` is
        the number of a change (``Writer.sequence``) that the results must include: if it has not
        been applied, the search waits for it, and fails after five seconds.
        """
        if min_sequence is not None and self.sequence < min_sequence:
            self._wait_for(min_sequence)
        return self._current.table.search(
            Q, n_neighbors, n_probe=n_probe, max_candidates=max_candidates, fill=fill, where=where,
            filter_ids=filter_ids, exclude_self=exclude_self, threads=threads, cancel=cancel,
        )  # fmt: skip

    def encode(self, X: npt.ArrayLike | Encoded, **options: Any) -> Encoded:
        """Encode items with the model; see :meth:`HashTable.encode`."""
        return self.table.encode(X, **options)

    def explain(self, q: npt.ArrayLike | Encoded, **options: Any) -> dict[str, Any]:
        """Explain the results of one query; see :meth:`HashTable.explain`."""
        return self.table.explain(q, **options)

    def stats(self) -> dict[str, Any]:
        """Statistics of the table; see :meth:`HashTable.stats`. Fetches all ids and labels."""
        return self.table.stats()

    def ids(self, where: Any = None) -> Ids:
        """Ids of all items, or of those that match a filter."""
        return self.table.ids(where)

    def count(self, where: Any = None) -> int:
        """Number of items, or of those that match a filter."""
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
        """Not supported: change the published table instead."""
        raise ValueError(
            "a ClusterTable is for searching: change the table that was published, with "
            "hashcade.cluster.Writer"
        )

    upsert = remove = add

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop polling for new generations, and close the connections."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._poller.join()
        try:
            for generation in self._blocks:
                self._generations.unregister(generation, self._node)
        except ClusterError:
            pass  # the registration expires in half a minute
        self._current.table.close()
        self._current.catalog.close()
        self.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _poll(reference: weakref.ref[ClusterTable], closing: threading.Event) -> None:
    """Refresh a table every second, until it is closed or garbage collected."""
    while not closing.wait(_POLL_SECONDS):
        table = reference()
        if table is None:
            return
        try:
            table.refresh()
        except HashcadeError as error:
            if str(error) != table.failure:
                log.warning("nothing newer can be used: %s", error)
            table.failure = str(error)
        del table
