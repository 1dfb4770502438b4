"""The writer of a published table: changes are committed to disk, then sent to Redis."""

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
    """A table on disk whose changes are replicated to the query nodes of a cluster.

    A change is on disk when its call returns, as with :meth:`HashTable.open`. If Redis cannot be
    reached then, it is sent with the next one, or by :meth:`flush`; ``unsent`` is the number of
    such changes. Publish the table with :meth:`publish` before the first change, and from time to
    time after: the new generation includes all changes.

    Parameters
    ----------
    path
        Directory of the table; there must be no other writer.
    reader
        The cluster.
    name
        Name of the table in the cluster.

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
        self._last_sent = -1
        self.table = HashTable.open(path, keep_changes_after=self._base)
        self._send_or_warn()

    def _find_base(self) -> int | None:
        """The last change that all published generations include; None if there are none."""
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
            self._send_or_warn()
        return ids

    def upsert(self, ids: Any, X: npt.ArrayLike | Encoded, **options: Any) -> None:
        """Replace items, or add them; see :meth:`HashTable.upsert`."""
        self._refuse_new_model(options)
        with self._lock:
            self.table.upsert(ids, X, **options)
            self._send_or_warn()

    def remove(self, ids: Any = None, *, where: Any = None) -> int:
        """Remove items by id or by a filter, and return how many."""
        with self._lock:
            n = self.table.remove(ids, where=where)
            self._send_or_warn()
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
        """Number of changes that are on disk but not in Redis."""
        return self.sequence - max(self._last_sent, self._base or 0)

    def flush(self) -> None:
        """Send unsent changes; raises ``ClusterError`` if that fails."""
        with self._lock:
            self._send()

    def resend(self) -> None:
        """Send all changes since the oldest generation again, after data loss in Redis."""
        with self._lock:
            self._stream.delete()
            self._send()

    def _send(self) -> None:
        if self._base is not None:
            self._last_sent = self._stream.send(self.table.catalog, self._base)

    def _send_or_warn(self) -> None:
        try:
            self._send()
        except ClusterError as error:  # the change is on disk: the caller must not retry
            log.warning("%d changes are not in Redis yet: %s", self.unsent, error)

    # -- generations -------------------------------------------------------------------------------

    def publish(self, *, activate: bool = False, first_pass: str | None = None) -> Manifest:
        """Publish the current state; see :func:`hashcade.cluster.publish`."""
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
        """Send unsent changes, if possible, and close the table."""
        with self._lock:
            self._send_or_warn()
            self.table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lineage_of(path: Path) -> str:
    """The identity of the table for its replicas; set if it has none."""
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
