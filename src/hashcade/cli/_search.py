"""``hashcade search``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hashcade.cli._input import read_queries
from hashcade.cli._journal import say_what_waits
from hashcade.cli._model import (
    Encoded,
    check_kind,
    encode_items,
    image_size_of,
    load_model,
    model_of_index,
)
from hashcade.cli._options import Index, Items, Json, Quiet, Split
from hashcade.cli._output import print_json, print_table

if TYPE_CHECKING:
    from hashcade.codes import CodeShape
    from hashcade.index import HashIndex, Origin


def search(
    index: Index,
    query: Annotated[
        Path,
        typer.Argument(
            metavar="QUERY",
            show_default=False,
            help="An image, a folder of images, or vectors as .npy, .npz or Parquet.",
        ),
    ],
    n_neighbors: Annotated[
        int, typer.Option("--n-neighbors", "-n", metavar="N", min=1, help="Results per query.")
    ] = 10,
    n_probe: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            show_default="as many as an item lies in",
            help="Look into this many buckets.",
        ),
    ] = None,
    max_candidates: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, show_default="no limit", help="Look at no more items than this."
        ),
    ] = None,
    fill: Annotated[
        bool,
        typer.Option(help="Go on to further buckets until there are enough results, or stay."),
    ] = True,
    model: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="The model, if it is no longer where it was."),
    ] = None,
    split: Split = None,
    items: Items = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find the items nearest to a query among those in its buckets.

    \b
    Examples:
      hashcade search index/ query.jpg
      hashcade search index/ queries.npy -n 5 --json
      hashcade search index/ query.jpg --n-probe 4     more buckets: misses less
    """
    from hashcade.index import HashIndex, read_origin

    opened = HashIndex.load(index)
    say_what_waits(index)
    origin = read_origin(index)
    place = model_of_index(index, origin, model)
    hasher = load_model(place)
    queries = read_queries(query, split=split, items=items, size=image_size_of(hasher), quiet=quiet)
    check_kind(hasher, queries.items, queries.source, place)
    encoded = encode_items(hasher, queries.items, with_scores=True, quiet=quiet)
    # With a code book the query's own buckets are not those of its best slots.
    by_path = not hasattr(hasher, "codebook_")
    where = (
        {"scores": encoded.scores}
        if by_path or n_probe is not None
        else {"bucket_ids": encoded.bucket_ids}
    )
    found = opened.search(
        encoded.vectors,
        **where,
        n_neighbors=n_neighbors,
        n_probe=n_probe,
        max_candidates=max_candidates,
        fill="path" if fill else "none",
    )
    names = queries.names or tuple(f"row {row}" for row in range(len(queries.items)))
    from hashcade.cli._buckets import labels_of

    labels = labels_of(opened, found.ids)
    answers = [
        _answer(row, name, found, labels[row], encoded, opened, origin)
        for row, name in enumerate(names)
    ]
    if as_json:
        print_json({"index": str(index), "n_items": len(opened), "queries": answers})
        return
    for number, answer in enumerate(answers):
        if number:
            print()
        _print(answer, len(opened))


def _answer(
    row: int,
    name: str,
    found: Any,
    labels: list[int | None],
    encoded: Encoded,
    index: HashIndex,
    origin: Origin | None,
) -> dict[str, Any]:
    """The answer to one query in plain values."""
    ids = [int(i) for i in found.ids[row] if i >= 0]
    return {
        "query": name,
        "buckets": [_path(index.shape, bucket) for bucket in encoded.bucket_ids[row].tolist()],
        "candidates": int(found.candidates[row]),
        "truncated": bool(found.truncated[row]),
        "results": [
            {
                "rank": rank + 1,
                "id": item,
                "name": origin.item_name(item) if origin else None,
                "label": origin.class_name(label) if origin else label,
                "distance": float(distance),
            }
            for rank, (item, label, distance) in enumerate(
                zip(ids, labels, found.distances[row].tolist(), strict=False)
            )
        ],
    }


def _path(shape: CodeShape, bucket: int) -> list[int]:
    path: list[int] = shape.paths(bucket).tolist()
    return path


def _print(answer: dict[str, Any], n_items: int) -> None:
    paths = " and ".join("/".join(map(str, path)) for path in answer["buckets"])
    print(f"{answer['query']} belongs to bucket {paths}")
    results = answer["results"]
    columns = ["rank", "id", "name", "label", "distance"]
    shown = [
        name
        for name in columns
        if name not in ("name", "label") or any(result[name] is not None for result in results)
    ]
    if results:
        print_table(
            ["#" if name == "rank" else name for name in shown],
            [[result[name] for name in shown] for result in results],
        )
    else:
        print("  nothing found")
    share = n_items / max(1, answer["candidates"])
    cut = "; stopped at --max-candidates" if answer["truncated"] else ""
    print(f"  looked at {answer['candidates']:,} of {n_items:,} items, 1 in {share:.1f}{cut}")
