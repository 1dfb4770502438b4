"""``hashcade demo``: learn, fill, search and look, on scikit-learn's digits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hashcade._extras import check_extras, require_extra
from hashcade.cli import options as opt
from hashcade.cli.inspect import tree_lines

if TYPE_CHECKING:
    from hashcade.table import HashTable


def demo(
    output: Annotated[
        Path, opt.option("Folder for the results.", "--output", "-o", metavar="DIR")
    ] = Path("demo"),
    steps: Annotated[int, opt.number("Batches of each of the two stages of training.")] = 200,
    quiet: opt.Quiet = False,
) -> None:
    """Show everything on handwritten digits: learn, fill, search, evaluate, draw.

    Takes about a minute, and downloads nothing. Needs the extra demo (torch, scikit-learn,
    Pillow).

    \b
    Examples:
      hashcade demo
      hashcade demo --output /tmp/digits --steps 50
    """
    check_extras(torch="demo", sklearn="demo", PIL="demo")
    import numpy as np

    from hashcade.table import HashTable

    # ---- data: two thirds to learn from and to search in, one third to search for
    images, labels = load_digits()
    order = np.random.default_rng(0).permutation(len(images))
    items, queries = order[: len(order) * 2 // 3], order[len(order) * 2 // 3 :]
    print(f"data        {len(items):,} digits to learn from, {len(queries):,} to search for")

    # ---- learn and fill: a network for vectors, then its copy for buckets
    start = time.perf_counter()
    table = HashTable(
        width=8, backbone="stride", embedding_size=32, augment="crop", items_per_class=8,
        steps=steps, base_steps=steps, verbose=not quiet,
    )  # fmt: skip
    table.fit(images[items], labels[items])
    table.save(output / "table")
    print(f"learned     in {time.perf_counter() - start:.0f} s")

    # ---- search and evaluate
    encoded = table.encode(images[queries])
    matches = table.search(encoded, 5)
    found = [str(match.label) for match in matches[0]]
    print(f"search      the five nearest to a {labels[queries[0]]} are {', '.join(found)}")
    print(f"{'':10}  {'precision@5':>11} {'candidates':>11} {'speed-up':>9}")
    n_occupied = table.index.stats()["n_occupied"]
    for name, n_probe in (("all items", max(2, n_occupied)), ("one bucket", 1)):
        result = table.evaluate(encoded, labels[queries], n_neighbors=5, n_probe=n_probe)
        candidates = len(items) / result.speedup[5]
        print(f"{name}  {result.precision[5]:11.1f} {candidates:11,.1f} {result.speedup[5]:9.1f}")

    # ---- look into it
    for line in tree_lines(table.with_labels(table.index.tree()), branches=8):
        print(f"  {line}")
    draw_buckets(output / "buckets.png", table, images[items])
    print(f"written     {output / 'table'}, {output / 'buckets.png'}")


def load_digits() -> tuple[Any, Any]:
    """scikit-learn's digits as colour images, uint8[1797, 16, 16, 3], and their labels."""
    import numpy as np

    digits = require_extra("sklearn.datasets", "demo").load_digits()
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)  # (n, 8, 8)
    enlarged = grey.repeat(2, axis=1).repeat(2, axis=2)
    return enlarged[..., None].repeat(3, axis=3), digits.target.astype(np.int64)


def draw_buckets(path: Path, table: HashTable, images: Any, *, most: int = 24) -> None:
    """Draw a row of items for each bucket, in the order of the tree, with its path before it."""
    import numpy as np
    from PIL import Image, ImageDraw

    bucket_ids, ids = table.index.entries()
    occupied = np.unique(bucket_ids)
    side, margin = images.shape[1] + 2, 40
    picture = Image.new("RGB", (margin + most * side, len(occupied) * side), "white")
    draw = ImageDraw.Draw(picture)
    for row, bucket in enumerate(occupied.tolist()):
        path_text = "/".join(map(str, table.index.shape.paths(bucket).tolist()))
        draw.text((4, row * side + 3), path_text, fill="black")
        for column, item in enumerate(np.sort(ids[bucket_ids == bucket])[:most].tolist()):
            picture.paste(Image.fromarray(images[item]), (margin + column * side, row * side))
    picture.save(path)
