"""An index whose blocks are in Redis; searches are registered with the block cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hashcade.index import HashIndex, SearchResult, warmup

from .cache import Int64s, RemoteBlocks
from .manifest import Manifest


@dataclass(eq=False, slots=True)
class RemoteResult(SearchResult):
    """Results with labels from the catalog: those of the index would need the ids of all items."""

    codes_of: Callable[[Int64s], Int64s] | None = None

    def label_codes(self) -> Int64s:
        """Labels of the results, (q, n_neighbors); -1 for none."""
        assert self.codes_of is not None
        return self.codes_of(self.ids)


class RemoteIndex(HashIndex):
    """An index of blocks in Redis.

    Methods that read blocks are registered with the cache, so that none of these is evicted.
    Label codes come from ``codes_of``.
    """

    remote: RemoteBlocks
    codes_of: Callable[[Int64s], Int64s]

    @classmethod
    def of_generation(
        cls, manifest: Manifest, blocks: RemoteBlocks, codes_of: Callable[[Int64s], Int64s]
    ) -> RemoteIndex:
        """The index of a generation."""
        if manifest.first_pass is not None:
            warmup(elsewhere=True)
        index = cls.from_segment(
            blocks.segment(), shape=manifest.shape, next_id=manifest.next_id,
            unit_length=manifest.unit_length,
        )  # fmt: skip
        index.remote, index.codes_of = blocks, codes_of
        return index

    @contextmanager
    def _reading(self) -> Iterator[None]:
        number = self.remote.searches.enter()
        try:
            yield
        finally:
            self.remote.searches.leave(number)
            self.remote.trim()

    def search(self, *args: Any, **options: Any) -> SearchResult:
        """See ``HashIndex.search``."""
        remote = self.remote
        number = remote.begin()  # faster than a context manager
        try:
            result = super().search(*args, **options)
        finally:
            remote.end(number)
        return RemoteResult(
            result.distances, result.ids, result.candidates, result.truncated, result.snapshot,
            result.searched, result.exclude, self.codes_of,
        )  # fmt: skip

    def labels_of(self, ids: Any) -> Int64s:
        """See ``HashIndex.labels_of``."""
        return self.codes_of(ids)

    def explain(self, *args: Any, **options: Any) -> dict[str, Any]:
        """See ``HashIndex.explain``."""
        with self._reading():
            return super().explain(*args, **options)

    def item(self, item_id: int) -> dict[str, Any]:
        """See ``HashIndex.item``."""
        with self._reading():
            return super().item(item_id)

    def bucket(self, *args: Any, **options: Any) -> tuple[Int64s, Int64s | None]:
        """See ``HashIndex.bucket``."""
        with self._reading():
            return super().bucket(*args, **options)

    def stats(self, *, quick: bool = False) -> dict[str, Any]:
        """See ``HashIndex.stats``."""
        with self._reading():
            return super().stats(quick=quick)

    def verify(self) -> None:
        """Fetch and verify everything."""
        with self._reading():
            super().verify()

    def save(self, *args: Any, **options: Any) -> None:
        """Not supported: the index is stored in Redis."""
        raise ValueError("an index of a cluster is not saved: copy the table that was published")

    def set_first_pass(self, first_pass: str | None) -> None:
        """Not supported: set when the table is published."""
        raise ValueError("the first pass of a cluster is that which the table was published with")

    def compact(self) -> None:
        """Not supported: it would fetch everything."""
        raise ValueError("an index of a cluster is not compacted: publish the table again")
