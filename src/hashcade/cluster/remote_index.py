"""An index whose blocks are in Redis: the same code as for files, within numbered searches."""

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
    """Results whose labels come from the catalog: the index would fetch the ids of all items."""

    codes_of: Callable[[Int64s], Int64s] | None = None

    def label_codes(self) -> Int64s:
        """Labels of the results, (q, n_neighbors); -1 for none."""
        assert self.codes_of is not None
        return self.codes_of(self.ids)


class RemoteIndex(HashIndex):
    """An index of blocks in Redis.

    What reads blocks has a number meanwhile, so that none of them is dropped. Codes of labels
    come from ``codes_of``.
    """

    remote: RemoteBlocks
    codes_of: Callable[[Int64s], Int64s]

    @classmethod
    def of_generation(
        cls, manifest: Manifest, blocks: RemoteBlocks, codes_of: Callable[[Int64s], Int64s]
    ) -> RemoteIndex:
        """An index of a generation."""
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
        number = remote.begin()  # without a context manager, which takes longer
        try:
            r = super().search(*args, **options)
        finally:
            remote.end(number)
        return RemoteResult(
            r.distances, r.ids, r.candidates, r.truncated, r.snapshot, r.searched, r.exclude,
            self.codes_of,
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
        """Fetch everything, and see that it is right."""
        with self._reading():
            super().verify()

    def save(self, *args: Any, **options: Any) -> None:
        """Refused: it is stored in Redis."""
        raise ValueError("an index of a cluster is not saved: copy the table that was published")

    def set_first_pass(self, first_pass: str | None) -> None:
        """Refused: a table is published with codes, or without."""
        raise ValueError("the first pass of a cluster is that which the table was published with")

    def compact(self) -> None:
        """Refused: that would fetch everything."""
        raise ValueError("an index of a cluster is not compacted: publish the table again")
