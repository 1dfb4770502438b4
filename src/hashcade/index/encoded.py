"""What a model makes of items, and where a search looks for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from hashcade.errors import add_hint
from hashcade.index.segment import Float32s, Int64s


@dataclass(frozen=True, eq=False)
class Encoded:
    """Items as the model sees them, from one pass of the network.

    ``vectors`` are what candidates are ranked by, ``bucket_ids`` the buckets of each item, best
    first, ``scores`` the slot scores; None for a method that has none, whose queries never leave
    their buckets. ``by_path``: the buckets are those of the best slots, not of a code book.
    ``ranked``: own buckets, then those that follow, if the model ranks them by prototypes;
    ``all_ranked``: none would follow these.
    """

    vectors: Float32s  # (n, dim)
    bucket_ids: Int64s  # (n, sparsity)
    scores: Float32s | None  # (n, depth, width)
    by_path: bool
    ranked: Int64s | None = None  # (n, sparsity * number of codes)
    all_ranked: bool = False

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: slice | npt.NDArray[Any]) -> Encoded:
        """Some of the items."""
        scores = None if self.scores is None else self.scores[rows]
        ranked = None if self.ranked is None else self.ranked[rows]
        vectors, bucket_ids = self.vectors[rows], self.bucket_ids[rows]
        return replace(self, vectors=vectors, bucket_ids=bucket_ids, scores=scores, ranked=ranked)

    def where_to_look(self, n_probe: int = 1) -> dict[str, Any]:
        """Where a query looks, as arguments for :meth:`HashIndex.search`.

        By default in its own buckets. With ``n_probe`` above 1 in those of the codes that come
        first, by prototypes if the model has them, else in those with the largest sums of scores.
        The buckets of a path follow from the scores, which also say how to go on.
        """
        if self.ranked is not None:
            sparsity, n_ranked = self.bucket_ids.shape[1], self.ranked.shape[1]
            if n_probe * sparsity > n_ranked and not self.all_ranked:
                known = f"the first {n_ranked // sparsity} codes were ranked"
                error = ValueError(f"n_probe={n_probe}, but {known}")
                raise add_hint(error, f"encode the queries with n_probe={n_probe}")
            return {"bucket_ids": self.ranked, "n_probe": n_probe * sparsity}
        if n_probe > 1 and self.scores is None:
            raise ValueError(f"n_probe={n_probe} needs slot scores, this method has none")
        if n_probe > 1:
            return {"scores": self.scores, "n_probe": n_probe}
        if self.by_path and self.scores is not None:
            return {"scores": self.scores}
        return {"bucket_ids": self.bucket_ids}
