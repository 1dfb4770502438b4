"""``hashcade demo``: a table of scikit-learn's digits, compared with simple baselines."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from hashcade._extras import check_extras, require_extra
from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli.inspect import tree_lines

_NEIGHBORS = 10
_SIDE, _SHOWN = 32, 16  # pixels of a digit; digits of a bucket in the picture of the tree


def demo(
    output: Annotated[Path, opt.option("Folder.", "--output", "-o", metavar="DIR")] = Path("demo"),
    steps: Annotated[int, opt.number("Batches of training.")] = 300,
) -> None:
    """Learn and search a table of handwritten digits, and compare it with simple baselines.

    Takes half a minute, and downloads nothing. Needs the extra demo (torch, scikit-learn, Pillow).

    \b
    Examples:
      hashcade demo
      hashcade demo --output /tmp/digits
    """
    check_extras(torch="demo", sklearn="demo", PIL="demo")
    import numpy as np

    from hashcade.table import HashTable
    from hashcade.warmup import ensure_compiled

    digits = require_extra("sklearn.datasets", "demo").load_digits()
    order = np.random.default_rng(0).permutation(len(digits.data))
    items, queries = np.split(order, [len(order) * 2 // 3])
    X, y = digits.data[items].astype(np.float32), digits.target[items]
    Q, labels = digits.data[queries].astype(np.float32), digits.target[queries]
    pictures = np.repeat(np.repeat(255 - digits.images[items] * 15.9, 4, 1), 4, 2).astype(np.uint8)
    print(f"{len(X):,} handwritten digits to search in, {len(Q):,} others to search for.")
    ensure_compiled()  # not to be counted as learning

    results, seconds = _baselines(X, y, Q)
    names = [f"{row:04}.png" for row in range(len(X))]
    table = HashTable(width=8, steps=steps)
    seconds["hashcade"] = _timed("hashcade", lambda: table.fit(X, y, names=names))
    results["hashcade"] = table.search(Q, _NEIGHBORS)
    rows = []
    for name, matches in results.items():
        is_right = 100.0 * (y[matches.ids] == labels[:, None])
        candidates = f"{matches.candidates.mean():,.0f}"
        at_1, at_10 = f"{is_right[:, 0].mean():.1f}", f"{is_right.mean():.1f}"
        rows.append((name, at_1, at_10, candidates, seconds.get(name, "")))
    print("\nNeighbors of the right digit, in percent, and items compared with a query:\n")
    out.print_table(("", "of 1", f"of {_NEIGHBORS}", "compared", "learned in"), rows)

    tree = table.with_labels(table.index.tree())
    print("\nThe tree that it learned:\n", *tree_lines(tree, branches=8), sep="\n  ")
    folder = output / "images"
    folder.mkdir(parents=True, exist_ok=True)
    image: Any = require_extra("PIL.Image", "demo")
    for name, picture in zip(names, pictures, strict=True):
        image.fromarray(picture).save(folder / name)
    table.catalog.data = folder.resolve()
    table.save(output / "digits.table")
    image.fromarray(_draw_tree(table.index, pictures)).save(output / "tree.png")
    print(f"\nWritten: {output / 'digits.table'}, and {output / 'tree.png'}, some digits of each")
    print("bucket. Look into it in a browser:\n")
    print(f"  hashcade serve {output / 'digits.table'}\n")


def _timed(name: str, work: Callable[[], Any]) -> str:
    """Run a function; print and return how long it took."""
    print(f"  learning: {name} ...", end=" ", flush=True)
    start = time.perf_counter()
    work()
    seconds = f"{time.perf_counter() - start:.1f} s"
    print(seconds, flush=True)
    return seconds


def _baselines(X: Any, y: Any, Q: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Results and training times of exhaustive search, k-means and a classifier."""
    import numpy as np

    from hashcade.codes import CodeShape
    from hashcade.index import HashIndex

    kmeans = require_extra("sklearn.cluster", "demo").KMeans(10, random_state=0)
    network = require_extra("sklearn.neural_network", "demo").MLPClassifier((512,), random_state=0)
    seconds = {
        "k-means": _timed("k-means, ten centroids", lambda: kmeans.fit(X)),
        "classifier": _timed("a classifier with 512 hidden units", lambda: network.fit(X, y)),
    }

    def search(item_buckets: Any, query_buckets: Any) -> Any:
        shape = CodeShape(width=10, depth=1)
        index = HashIndex.build(item_buckets.astype(np.int64), X, shape=shape)
        return index.search(Q, bucket_ids=query_buckets.astype(np.int64), n_neighbors=_NEIGHBORS)

    results = {
        "exhaustive search": search(np.zeros(len(X)), np.zeros(len(Q))),
        "k-means": search(kmeans.predict(X), kmeans.predict(Q)),
        "classifier": search(y, network.predict(Q)),
    }
    return results, seconds


def _draw_tree(index: Any, pictures: Any) -> Any:
    """An image with a row of digits per bucket, separated by first slot."""
    import numpy as np

    rows = []
    for top in index.tree()["children"]:
        for leaf in top["children"]:
            bucket = int(index.shape.bucket_ids(leaf["path"]))
            ids, _ = index.bucket(bucket, limit=_SHOWN)
            row = np.full((_SIDE, _SHOWN * _SIDE), 255, np.uint8)
            row[:, : len(ids) * _SIDE] = np.concatenate(pictures[ids], axis=1)
            rows.append(row)
        rows.append(np.full((_SIDE // 2, _SHOWN * _SIDE), 200, np.uint8))
    return np.concatenate(rows[:-1])
