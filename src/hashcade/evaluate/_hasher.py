"""Evaluation of anything with the contract of ``Hasher``: learned or not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hashcade.codes._check import as_array
from hashcade.codes._shape import CodeShape
from hashcade.evaluate._protocol import Queries, query_chunks, run_protocol
from hashcade.evaluate._result import Evaluation
from hashcade.index._check import checked_vectors


class HashesItems(Protocol):
    """What is asked of a hasher. ``scores`` is used if it is there."""

    @property
    def shape_(self) -> CodeShape:
        """Shape of its table."""

    def transform(self, X: Any, /) -> npt.NDArray[np.int64]:
        """Bucket ids, int64[n, sparsity]."""

    def embed(self, X: Any, /) -> npt.NDArray[np.float32]:
        """Vectors for re-ranking, float32[n, dim]."""


def evaluate_hasher(
    hasher: HashesItems,
    queries: Any,
    query_labels: npt.ArrayLike,
    items: Any = None,
    item_labels: npt.ArrayLike | None = None,
    *,
    query_vectors: npt.ArrayLike | None = None,
    item_vectors: npt.ArrayLike | None = None,
    n_neighbors: Any = (1, 4, 16),
    protocol: str = "paper",
    fill: str | None = None,
    n_probe: int | None = None,
    recall: bool = False,
    threads: int | None = None,
) -> Evaluation:
    """Build a table of items with a fitted hasher, and evaluate queries against it.

    Parameters
    ----------
    hasher
        A ``Hasher``, a baseline, or anything with ``transform``, ``embed`` and ``shape_``, and
        perhaps ``scores``, by which queries with too few candidates find their next buckets.
    queries : array[q, ...]
        Items as the hasher takes them: embeddings or images.
    query_labels : int or str[q]
    items : array[n, ...], optional
        The database. None: the queries themselves; no query then finds itself.
    item_labels : int or str[n]
        Needed with ``items``.
    query_vectors, item_vectors : float[q, dim], float[n, dim]
        Re-rank by these. None: by ``hasher.embed``.
    n_neighbors, protocol, fill, n_probe, recall, threads
        As for :func:`evaluate_search`. For a hasher with a code book (``assignment="codebook"``, or
        a ``codebook_``) and one bucket per item the defaults are ``n_probe=1`` and, in the paper's
        protocol, ``fill="sum"``: its bucket is the one with the largest sum. With several, queries
        ask with the buckets that ``transform`` gives.

    Returns
    -------
    Evaluation
        ``seconds["hash"]`` is the time of ``transform``, ``scores`` and ``embed`` together.
    """
    same_set = items is None
    if same_set != (item_labels is None):
        missing = "item_labels" if item_labels is None else "items"
        raise ValueError(f"{missing} must be given as well: items and item_labels belong together")
    if same_set:
        items, item_labels = queries, query_labels
        item_vectors = query_vectors if item_vectors is None else item_vectors
    assert item_labels is not None
    shape = hasher.shape_
    with_scores = hasattr(hasher, "scores")
    by_sum = hasattr(hasher, "codebook_") or getattr(hasher, "assignment", "path") == "codebook"
    if by_sum and shape.sparsity > 1 and n_probe is None:
        with_scores = False  # the buckets of its code need not be those of the best sums
    elif by_sum and with_scores:
        n_probe = 1 if n_probe is None else n_probe
        fill = "sum" if fill is None and protocol == "paper" else fill
    start = time.perf_counter()
    asked = as_array("queries", queries)
    if item_vectors is None:
        item_vectors = hasher.embed(items)
    if query_vectors is None:
        query_vectors = item_vectors if same_set else hasher.embed(asked)
    bucket_ids = hasher.transform(items)
    spent = time.perf_counter() - start
    vectors = checked_vectors("query_vectors", query_vectors)
    if len(vectors) != len(asked):
        raise ValueError(f"query_vectors has {len(vectors)} rows, queries has {len(asked)}")

    def parts() -> Iterator[Queries]:
        nonlocal spent
        for rows in query_chunks(len(asked), shape):
            start = time.perf_counter()
            some = asked[rows]
            scores = hasher.scores(some) if with_scores else None  # type: ignore[attr-defined]
            where = None if with_scores else hasher.transform(some)
            spent += time.perf_counter() - start
            yield Queries(rows.start, vectors[rows], scores, where)

    result = run_protocol(
        parts(), len(asked), query_labels, item_vectors, item_labels,
        item_bucket_ids=bucket_ids, shape=shape, with_scores=with_scores,
        n_neighbors=n_neighbors, same_set=same_set, protocol=protocol, fill=fill,
        n_probe=n_probe, recall=recall, threads=threads,
    )  # fmt: skip
    result.seconds["hash"] = spent
    return result


def evaluate_paper(
    hasher: HashesItems,
    test: Any,
    test_labels: npt.ArrayLike,
    train: Any,
    train_labels: npt.ArrayLike,
    *,
    test_vectors: npt.ArrayLike | None = None,
    train_vectors: npt.ArrayLike | None = None,
    **settings: Any,
) -> dict[str, Evaluation]:
    """Evaluate as the paper does: test items against test items, and against training items.

    Parameters
    ----------
    hasher
        Fitted, as for :func:`evaluate_hasher`.
    test, test_labels, train, train_labels
        Items as the hasher takes them, and their classes.
    test_vectors, train_vectors
        Re-rank by these. None: by ``hasher.embed``.
    **settings
        Further settings of :func:`evaluate_hasher`.

    Returns
    -------
    dict
        ``"test"`` and ``"train"``: the set that the table was built on.
    """
    return {
        "test": evaluate_hasher(hasher, test, test_labels, query_vectors=test_vectors, **settings),
        "train": evaluate_hasher(
            hasher, test, test_labels, train, train_labels,
            query_vectors=test_vectors, item_vectors=train_vectors, **settings,
        ),
    }  # fmt: skip
