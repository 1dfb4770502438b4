"""``hashcade demo``: a table of scikit-learn's digits, beside what one would try first."""

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
    """Learn and search a table of handwritten digits, beside what one would try first.

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
    Q, wanted = digits.data[queries].astype(np.float32), digits.target[queries]
    pictures = np.repeat(np.repeat(255 - digits.images[items] * 15.9, 4, 1), 4, 2).astype(np.uint8)
    print(f"{len(X):,} handwritten digits to search in, {len(Q):,} others to search for.")
    ensure_compiled()  # its time is not that of learning

    results, fitted = _rivals(X, y, Q)
    names = [f"{row:04}.png" for row in range(len(X))]
    table = HashTable(width=8, steps=steps)
    fitted["hashcade"] = _timed("hashcade", lambda: table.fit(X, y, names=names))
    results["hashcade"] = table.search(Q, _NEIGHBORS)
    rows = []
    for name, found in results.items():
        right = 100.0 * (y[found.ids] == wanted[:, None])
        compared = f"{found.candidates.mean():,.0f}"
        at_1, at_10 = f"{right[:, 0].mean():.1f}", f"{right.mean():.1f}"
        rows.append((name, at_1, at_10, compared, fitted.get(name, "")))
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


def _timed(what: str, work: Callable[[], Any]) -> str:
    """Say what is done, do it, and return how long it took."""
    print(f"  learning: {what} ...", end=" ", flush=True)
    start = time.perf_counter()
    work()
    seconds = f"{time.perf_counter() - start:.1f} s"
    print(seconds, flush=True)
    return seconds


def _rivals(X: Any, y: Any, Q: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """What all items, k-means and a classifier find for queries, and how long these learned."""
    import numpy as np

    from hashcade.codes import CodeShape
    from hashcade.index import HashIndex

    kmeans = require_extra("sklearn.cluster", "demo").KMeans(10, random_state=0)
    network = require_extra("sklearn.neural_network", "demo").MLPClassifier((512,), random_state=0)
    fitted = {
        "k-means": _timed("k-means, ten centroids", lambda: kmeans.fit(X)),
        "classifier": _timed("a classifier with 512 hidden units", lambda: network.fit(X, y)),
    }

    def search(own: Any, asked: Any) -> Any:
        shape = CodeShape(width=10, depth=1)
        index = HashIndex.build(own.astype(np.int64), X, shape=shape)
        return index.search(Q, bucket_ids=asked.astype(np.int64), n_neighbors=_NEIGHBORS)

    results = {
        "exhaustive search": search(np.zeros(len(X)), np.zeros(len(Q))),
        "k-means": search(kmeans.predict(X), kmeans.predict(Q)),
        "classifier": search(y, network.predict(Q)),
    }
    return results, fitted


def _draw_tree(index: Any, pictures: Any) -> Any:
    """A row of digits for each bucket, the first slots apart."""
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
