"""``hashcade search``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli.inputs import load_table, read_and_encode

_QUERY = "An image, a folder of images, or vectors as .npy, .npz or Parquet."
_MOST = "Compare a query with at most this many items."


def search(
    table: opt.Table,
    query: Annotated[Path, opt.argument("QUERY", _QUERY)],
    n_neighbors: Annotated[int, opt.number("Results per query.", "--n-neighbors", "-n")] = 10,
    n_probe: opt.NProbe = 1,
    max_candidates: Annotated[int | None, opt.number(_MOST, default="no limit")] = None,
    fill: opt.Fill = True,
    split: opt.Split = None,
    items: opt.Items = None,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Find the items nearest to a query among those in its buckets.

    \b
    Examples:
      hashcade search table/ query.jpg
      hashcade search table/ queries.npy -n 5 --json
      hashcade search table/ query.jpg --n-probe 4     more buckets: finds more
    """
    opened = load_table(table)
    queries, encoded = read_and_encode(
        opened.hasher, table, query, split=split, items=items, ignore_labels=True, quiet=quiet
    )
    matches = opened.search(
        encoded, n_neighbors, n_probe=n_probe, max_candidates=max_candidates, fill=fill
    )
    names = queries.names or tuple(f"row {row}" for row in range(len(queries)))
    results = [
        {
            "query": name,
            "buckets": opened.index.shape.paths(encoded.bucket_ids[row]).tolist(),
            "candidates": int(matches.candidates[row]),
            "truncated": bool(matches.truncated[row]),
            "results": [asdict(match) for match in matches[row]],
        }
        for row, name in enumerate(names)
    ]
    if as_json:
        out.print_json({"table": str(table), "n_items": len(opened), "queries": results})
        return
    for number, result in enumerate(results):
        print("\n" if number else "", end="")
        _print(result, len(opened))


def _print(result: dict[str, Any], n_items: int) -> None:
    paths = " and ".join("/".join(map(str, path)) for path in result["buckets"])
    print(f"{result['query']} is in bucket {paths}")
    matches = result["results"]
    known = [name for name in ("name", "label") if any(m[name] is not None for m in matches)]
    columns = ["id", *known, "distance"]
    if matches:
        rows = [[rank, *(match[name] for name in columns)] for rank, match in enumerate(matches, 1)]
        out.print_table(["#", *columns], rows)
    else:
        print("  no results")
    count, limit = result["candidates"], "; stopped at --max-candidates"
    share = f"1 in {n_items / max(1, count):.1f}{limit if result['truncated'] else ''}"
    print(f"  {count:,} candidates of {n_items:,} items, {share}")
