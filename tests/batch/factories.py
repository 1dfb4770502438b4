"""Shards, models and digests of tables for the tests of batch builds."""

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hashcade import HashTable

DIM = 8
N_CLASSES = 12
CENTERS = np.random.default_rng(7).normal(size=(N_CLASSES, DIM)).astype(np.float32)


def draw(n, seed):
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, N_CLASSES, n)
    noise = rng.normal(size=(n, DIM)).astype(np.float32)
    return CENTERS[classes] + np.float32(0.4) * noise, [f"class {c}" for c in classes]


def fit_model(path, **settings):
    """A model that knows all classes but the last."""
    X, y = draw(600, 1)
    known = np.array([label != f"class {N_CLASSES - 1}" for label in y])
    table = HashTable(width=6, steps=40, **settings).fit(X[known], np.array(y)[known])
    table.hasher.save(path)
    return path


def rows(n, seed, *, first=0, missing=0, **columns):
    """A table of Arrow with embeddings, labels (of which some may be null) and payload."""
    X, y = draw(n, seed)
    y[:missing] = [None] * missing
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), DIM)
    price = np.arange(first, first + n) % 17
    made = {"embedding": embedding, "label": y, "price": price, "text": [f"é{v}" for v in price]}
    return pa.table({**made, **columns})


def write_shards(folder, sizes):
    """Shards of these sizes, in several groups of rows; returns their tables."""
    folder.mkdir()
    tables, first = [], 0
    for number, n in enumerate(sizes):
        tables.append(rows(n, 100 + number, first=first, missing=min(n, 5)))
        pq.write_table(tables[-1], folder / f"{number:03d}.parquet", row_group_size=900)
        first += n
    return tables


def digest(table):
    """Names and content of all files of a table."""
    files = sorted(path for path in table.rglob("*") if path.is_file() and path.name != "lock")
    return {
        str(path.relative_to(table)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
