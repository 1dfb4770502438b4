"""Results of a table: matches of a search, and single items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.index import SearchResult
from hashcade.store import Catalog, Ids, Label


@dataclass(frozen=True)
class Match:
    """One result of a search."""

    id: int | str
    distance: float
    label: Label | None = None
    name: str | None = None
    payload: dict[str, Any] | None = None


@dataclass(eq=False)  # not frozen: to make one would take three times as long
class Matches:
    """Results of a search. ``matches[0]`` is a list of :class:`Match` for the first query."""

    ids: Ids  # (q, n_neighbors), best first, padded with -1, or with None if ids are text
    distances: npt.NDArray[np.float32]  # (q, n_neighbors); inner products: the largest first
    candidates: npt.NDArray[np.int64]  # (q,): number of items compared with the query
    truncated: npt.NDArray[np.bool_]  # (q,): whether max_candidates ended the search
    # Looks up "exact", "labels", "names" or "payload" when it is first asked for.
    find: Callable[[str], npt.NDArray[Any]] = field(repr=False)

    @classmethod
    def of(cls, catalog: Catalog, result: SearchResult) -> Matches:
        """Results of an index, with the metadata of the items from a catalog."""
        return cls(
            catalog.ids_of(result.ids),
            result.distances,
            result.candidates,
            result.truncated,
            partial(_find, catalog, result),
        )

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Number of results of each query, int64[q]."""
        padding: Any = None if self.ids.dtype == object else -1
        return np.asarray(np.not_equal(self.ids, padding).sum(axis=1, dtype=np.int64))

    @cached_property
    def exact(self) -> npt.NDArray[np.bool_]:
        """Whether all items that match the filter were compared, (q,)."""
        return self.find("exact")

    @cached_property
    def labels(self) -> npt.NDArray[np.object_]:
        """Labels of the items, (q, n_neighbors); None without one. Looked up on first access."""
        return self.find("labels")

    @cached_property
    def names(self) -> npt.NDArray[np.object_]:
        """Names of the items, (q, n_neighbors); None without one."""
        return self.find("names")

    @cached_property
    def payload(self) -> npt.NDArray[np.object_]:
        """Payload of the items, a dict each, (q, n_neighbors); None without one.

        Names and payload are looked up on first access, and so include changes made to the table
        since the search. For a table from :meth:`HashTable.open`, they are those at the time of
        the search.
        """
        return self.find("payload")

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies: labels, names and payload replace the reference to the table."""
        values = {name: getattr(self, name) for name in ("exact", "labels", "names", "payload")}
        return {**{k: v for k, v in vars(self).items() if k != "find"}, **values}

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, query: int) -> list[Match]:
        row = zip(
            self.ids[query].tolist(),
            self.distances[query].tolist(),
            self.labels[query],
            self.names[query],
            self.payload[query],
            strict=True,
        )
        return [Match(*values) for values in row][: self.counts[query]]

    def __iter__(self) -> Iterator[list[Match]]:
        return (self[query] for query in range(len(self)))


def _find(catalog: Catalog, result: SearchResult, name: str) -> npt.NDArray[Any]:
    if name == "exact":
        return result.exact
    if name == "labels":
        return catalog.labels(result.label_codes())
    return catalog.names_of(result.ids) if name == "names" else catalog.payload_of(result.ids)


@dataclass(frozen=True, eq=False)
class Item:
    """One item of a table."""

    id: int | str
    label: Label | None
    name: str | None
    payload: dict[str, Any] | None
    vector: npt.NDArray[np.float32]
    bucket_ids: list[int]
