"""The demonstration: learn, build, search and look, on scikit-learn's digits.

``python -m hashcade.demo`` or ``make demo``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._extras import require_extra

N_NEIGHBORS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration by the arguments of a command line."""
    parser = argparse.ArgumentParser(prog="python -m hashcade.demo", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder for the results")
    parser.add_argument("--steps", type=int, default=200, help="batches of each of the two stages")
    options = parser.parse_args(arguments)
    run(options.output, options.steps)
    return 0


def run(output: Path, steps: int, *, verbose: bool = True) -> None:
    """Run the demonstration: results to stdout, progress to stderr, a picture to a file."""
    from hashcade.index import HashIndex
    from hashcade.learn import Hasher
    from hashcade.report._tree import draw_tree

    # ---- data: two thirds to learn from and to search in, one third to ask with
    images, labels = load_digits()
    order = np.random.default_rng(0).permutation(len(images))
    known, queries = order[: len(order) * 2 // 3], order[len(order) * 2 // 3 :]
    print(f"data       {len(known):,} digits to learn from, {len(queries):,} to ask with")

    # ---- learn: a network for vectors, then its copy for buckets
    hasher = Hasher(
        width=8,
        depth=2,
        backbone="stride",
        embedding_size=32,
        augment="crop",
        items_per_class=8,
        steps=steps,
        base_steps=steps,
        verbose=verbose,
    )
    start = time.perf_counter()
    hasher.fit(images[known], labels[known])
    print(f"learned    in {time.perf_counter() - start:.0f} s")
    hasher.save(output / "model")

    # ---- build the table, and search it
    buckets = hasher.transform(images[known])[:, 0]
    index = HashIndex.build(buckets, hasher.embed(images[known]), shape=hasher.shape_)
    index.save(output / "index")
    vectors, asked = hasher.embed(images[queries]), hasher.transform(images[queries])
    result = index.search(vectors, bucket_ids=asked, n_neighbors=N_NEIGHBORS)
    everything = exhaustive(hasher.embed(images[known]), vectors)

    # ---- what it is worth
    hashed = _precision(labels[known], result.ids, labels[queries])
    exact = _precision(labels[known], everything, labels[queries])
    looked_at = float(result.candidates.mean())
    occupied = len(np.unique(buckets))
    print(f"table      {occupied} of {hasher.shape_.n_buckets} buckets are in use")
    print(f"{'':10} {f'Pr@{N_NEIGHBORS}':>7} {'items looked at':>17} {'speed-up':>9}")
    print(f"{'exhaustive':10} {exact:7.1f} {len(known):17,} {1.0:9.1f}")
    print(f"{'hashcade':10} {hashed:7.1f} {looked_at:17,.1f} {len(known) / looked_at:9.1f}")
    picture = output / "tree.png"
    draw_tree(picture, images[known], labels[known], hasher.shape_, buckets)
    print(f"written    {output}/model, {output}/index, {picture}")


def load_digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """scikit-learn's digits as colour images, uint8[1797, 16, 16, 3], and their labels."""
    datasets = require_extra("sklearn.datasets", "demo")
    digits = datasets.load_digits()
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)  # (n, 8, 8)
    enlarged = grey.repeat(2, axis=1).repeat(2, axis=2)
    return enlarged[..., None].repeat(3, axis=3), digits.target.astype(np.int64)


def exhaustive(
    vectors: npt.NDArray[np.float32], queries: npt.NDArray[np.float32]
) -> npt.NDArray[np.int64]:
    """The nearest items of all, int64[q, n_neighbors]."""
    gaps = np.square(queries[:, None] - vectors[None]).sum(axis=2)
    return np.argsort(gaps, axis=1, kind="stable")[:, :N_NEIGHBORS].astype(np.int64)


def _precision(
    labels: npt.NDArray[Any], ids: npt.NDArray[np.int64], wanted: npt.NDArray[Any]
) -> float:
    """Per cent of results that have the label of the query; a missing one (-1) has not."""
    right = (labels[ids] == wanted[:, None]) & (ids >= 0)
    return 100.0 * float(right.mean())
