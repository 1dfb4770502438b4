"""``hashcade demo``: learn, fill, search and look, on scikit-learn's digits."""

import time
from pathlib import Path
from typing import Annotated

from hashcade._extras import check_extras, require_extra
from hashcade.cli import options as opt
from hashcade.cli.inspect import tree_lines


def demo(
    output: Annotated[Path, opt.option("Folder.", "--output", "-o", metavar="DIR")] = Path("demo"),
    steps: Annotated[int, opt.number("Batches of training.")] = 200,
    quiet: opt.Quiet = False,
) -> None:
    """Show everything on handwritten digits: learn, fill, search, evaluate, look.

    Takes seconds, and downloads nothing. Needs the extra demo (torch, scikit-learn).

    \b
    Examples:
      hashcade demo
      hashcade demo --output /tmp/digits --steps 50
    """
    check_extras(torch="demo", sklearn="demo")
    import numpy as np

    from hashcade.table import HashTable

    # two thirds to learn from and to search in, one third to search for
    X, y = require_extra("sklearn.datasets", "demo").load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    items, queries = np.split(order, [len(X) * 2 // 3])
    print(f"data        {len(items):,} digits to learn from, {len(queries):,} to search for")

    start = time.perf_counter()
    table = HashTable(width=8, steps=steps, verbose=not quiet).fit(X[items], y[items])
    table.save(output / "table")
    print(f"learned     in {time.perf_counter() - start:.0f} s")

    encoded = table.encode(X[queries])
    labels = [str(match.label) for match in table.search(encoded, 5)[0]]
    print(f"search      the five nearest to a {y[queries[0]]} are {', '.join(labels)}")
    print(f"{'':10}  {'precision@5':>11} {'candidates':>11} {'speed-up':>9}")
    everywhere = max(2, table.stats()["n_occupied"])
    for name, n_probe in (("all items", everywhere), ("one bucket", 1)):
        result = table.evaluate(encoded, y[queries], n_neighbors=5, n_probe=n_probe)
        precision, speedup = result.precision[5], result.speedup[5]
        print(f"{name:10}  {precision:11.1f} {len(items) / speedup:11,.1f} {speedup:9.1f}")

    print(*tree_lines(table.with_labels(table.index.tree()), branches=8), sep="\n  ")
    print(f"written     {output / 'table'}: look into it with hashcade inspect or serve")
