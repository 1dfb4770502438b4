"""The one writer of a published table: a change is on disk first, and then on its way to all."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import numpy.typing as npt

from hashcade.errors import ClusterError
from hashcade.index import Encoded
from hashcade.store import Catalog, Ids
from hashcade.table import HashTable

from .changes import Stream
from .generations import COMPLETE, Generations
from .manifest import Manifest
from .publish import publish
from .reader import Reader

log = logging.getLogger("hashcade.cluster")


class Writer:
    """A table on disk whose changes go on to the query nodes of a cluster.

    A change is on disk when its call returns, as with :meth:`HashTable.open`. If Redis cannot be
    reached then, it is sent with the next one, or by :meth:`flush`: ``unsent`` says how many there
    are. Publish the table with :meth:`publish` before the first change, and from time to time
    after: that takes all changes into the blocks.

    Parameters
    ----------
    path
        Directory of the table; nobody else may have it open for changes.
    reader
        The cluster.
    name
        What the table is called there.

    Examples
    --------
    ::

        with Writer("photos.table", Reader("redis://10.0.0.1:6379"), "photos") as writer:
            writer.publish(activate=True)
            writer.add(X, labels=y)
            table.search(Q, min_sequence=writer.sequence)     # on a query node
    """

    def __init__(self, path: str | os.PathLike[str], reader: Reader, name: str) -> None:
        self._path, self._generations = Path(path), Generations(reader, name)
        self._lineage = _lineage_of(self._path)
        self._stream = Stream(self._generations, self._lineage)
        self._base = self._find_base()
        self._lock = threading.Lock()
        self._sent = -1
        self.table = HashTable.open(path, keep_changes_after=self._base)
        self._try_to_send()

    def _find_base(self) -> int | None:
        """The first change that a published generation lacks begins after this one."""
        generations = self._generations
        complete = [g for g, state in generations.states().items() if state == COMPLETE]
        manifests = map(generations.manifest, complete)
        return min((m.sequence for m in manifests if m.lineage == self._lineage), default=None)

    # -- changes -----------------------------------------------------------------------------------

    def add(self, X: npt.ArrayLike | Encoded, **options: Any) -> Ids:
        """Add items; see :meth:`HashTable.add`."""
        self._refuse_new_model(options)
        with self._lock:
            ids = self.table.add(X, **options)
            self._try_to_send()
        return ids

    def upsert(self, ids: Any, X: npt.ArrayLike | Encoded, **options: Any) -> None:
        """Replace items, or add them; see :meth:`HashTable.upsert`."""
        self._refuse_new_model(options)
        with self._lock:
            self.table.upsert(ids, X, **options)
            self._try_to_send()

    def remove(self, ids: Any = None, *, where: Any = None) -> int:
        """Remove items by id or by a filter, and return how many."""
        with self._lock:
            n = self.table.remove(ids, where=where)
            self._try_to_send()
        return n

    def _refuse_new_model(self, options: dict[str, Any]) -> None:
        if options.get("new_labels") and self.table.hasher is not None:
            raise ValueError(
                "new_labels=True may change the model, which the query nodes have: use "
                "HashTable.open for it, and publish the table"
            )

    @property
    def sequence(self) -> int:
        """Number of the last change: with ``min_sequence`` a search waits for it."""
        return self.table.catalog.last_change

    @property
    def unsent(self) -> int:
        """Changes that are on disk and not in Redis."""
        return self.sequence - max(self._sent, self._base or 0)

    def flush(self) -> None:
        """Send what was not sent; raises ``ClusterError`` if that cannot be done."""
        with self._lock:
            self._send()

    def resend(self) -> None:
        """Send everything since the oldest generation again: after a loss, or damage, in Redis."""
        with self._lock:
            self._stream.delete()
            self._send()

    def _send(self) -> None:
        if self._base is not None:
            self._sent = self._stream.send(self.table.catalog, self._base)

    def _try_to_send(self) -> None:
        try:
            self._send()
        except ClusterError as error:  # it is on disk, and the caller must not repeat it
            log.warning("%d changes are not in Redis yet: %s", self.unsent, error)

    # -- generations -------------------------------------------------------------------------------

    def publish(self, *, activate: bool = False, first_pass: str | None = None) -> Manifest:
        """Publish the table as it is now; see :func:`hashcade.cluster.publish`."""
        with self._lock:
            if self._base is None:
                self.table.keep_changes(self.sequence)
            manifest = publish(
                self._path, self._generations.reader, self._generations.keys.name,
                activate=activate, first_pass=first_pass,
            )  # fmt: skip
            self._base = self._find_base()
            assert self._base is not None
            self.table.keep_changes(self._base)
            self._stream.trim(self._base)
            self._send()
        return manifest

    def close(self) -> None:
        """Send what is left, if it can be, and release the table."""
        with self._lock:
            self._try_to_send()
            self.table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lineage_of(path: Path) -> str:
    """What the table is known by; it gets a name if it has none."""
    catalog = Catalog.open(path)
    try:
        if (lineage := catalog.lineage) is None:
            lineage = uuid4().hex
            catalog.begin()
            catalog.set_lineage(lineage)
            catalog.commit()
        return lineage
    finally:
        catalog.rollback()
        catalog.close()
