"""``hashcade search`` and ``hashcade evaluate``."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli.inputs import labels_of, load_table, read_and_encode, root_of
from hashcade.errors import ConfigError

if TYPE_CHECKING:
    from hashcade.index import Encoded
    from hashcade.table import HashTable

_VISITS = 2**22  # buckets of all queries that are searched at a time
_QUERY = "An image, a folder of images, or vectors as .npy, .npz or Parquet."
_MOST = "Compare a query with at most this many items."
_COUNTS = opt.number("Results per query; repeatable.", "--n-neighbors", "-n", default="1, 10")
_EXCLUDE = "DATA is what the table was filled with: query i must not find item i."
_RECALL = "Also the share of the truly nearest items (slow)."


def search(
    table: opt.Table,
    query: Annotated[Path, opt.argument("QUERY", _QUERY)],
    n_neighbors: Annotated[int, opt.number("Results per query.", "--n-neighbors", "-n")] = 10,
    n_probe: opt.NProbe = 1,
    max_candidates: Annotated[int | None, opt.number(_MOST, default="no limit")] = None,
    fill: opt.Fill = True,
    where: opt.Where = None,
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
      hashcade search table/ query.jpg --where 'price<10' --where label=cat
    """
    opened = load_table(table)
    reading = opt.Reading(split=split, items=items, quiet=quiet)
    queries, encoded = read_and_encode(opened.hasher, table, query, reading, False, n_probe)
    matches = opened.search(
        encoded, n_neighbors, n_probe=n_probe, max_candidates=max_candidates, fill=fill,
        where=opt.parsed_where(where),
    )  # fmt: skip
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
    out.report(as_json, {"table": str(table), "n_items": len(opened), "queries": results})
    for number, result in enumerate(results if not as_json else ()):
        paths = " and ".join("/".join(map(str, path)) for path in result["buckets"])
        print("\n" if number else "", f"{result['query']} is in bucket {paths}", sep="")
        found = result["results"]
        columns = ("name", "label", "payload")
        known = [name for name in columns if any(m[name] is not None for m in found)]
        rows = [
            [rank, m["id"], *(m[name] for name in known), f"{m['distance']:.4f}"]
            for rank, m in enumerate(found, 1)
        ]
        if rows:
            out.print_table(["#", "id", *known, "distance"], rows)
        else:
            print("  no results")
        count, limit = result["candidates"], "; stopped at --max-candidates"
        share = f"1 in {len(opened) / max(1, count):.1f}{limit if result['truncated'] else ''}"
        print(f"  {count:,} candidates of {len(opened):,} items, {share}")


def evaluate(
    table: opt.Table,
    data: opt.Data,
    *,
    n_neighbors: Annotated[list[int] | None, _COUNTS] = None,
    n_probe: opt.NProbe = 1,
    fill: opt.Fill = True,
    exclude_self: Annotated[bool, opt.flag("--exclude-self", _EXCLUDE)] = False,
    recall: Annotated[bool, opt.flag("--recall", _RECALL)] = False,
    reading: opt.Reading,
    as_json: opt.Json = False,
) -> None:
    """Measure a table with labelled queries: precision and speed-up.

    Precision is the share of results with the query's label, beside that of a search through
    all items; the speed-up is how many times fewer items were compared. NMI says how well
    buckets and classes agree.

    \b
    Examples:
      hashcade evaluate table/ test.npz
      hashcade evaluate table/ photos/ --split test -n 1 -n 10 --recall
      hashcade evaluate table/ vectors.npy --exclude-self --json
    """
    opened = load_table(table)
    queries, encoded = read_and_encode(opened.hasher, table, data, reading, True, n_probe)
    y = labels_of(queries) or []
    if not set(y) & set(opened.catalog.classes):
        raise ConfigError(f"{data} and {table} have no class in common", hint="check --labels")
    if root_of(data, reading, queries) == opened.catalog.data and not exclude_self:
        out.say("hashcade: queries find themselves; leave them out with --exclude-self")
    counts = tuple(sorted(set(n_neighbors or (1, 10))))
    same: dict[str, Any] = {"n_neighbors": counts, "exclude_self": exclude_self}
    protocol = "paper" if fill else "plain"
    result = opened.evaluate(encoded, y, n_probe=n_probe, protocol=protocol, recall=recall, **same)
    everything = _exhaustive(opened, encoded, y, result.n_occupied, same)
    out.report(
        as_json,
        {**result.to_dict(), "exhaustive_precision": {str(k): v for k, v in everything.items()}},
        ("queries", f"{result.n_queries:,} from {queries.source}"),
        ("table", f"{result.n_items:,} items in {result.n_occupied:,} buckets"),
        ("NMI", f"{result.nmi:.1f} % of buckets and classes"),
    )
    if as_json:
        return
    columns = {"precision %": result.precision, "exhaustive %": everything}
    columns |= {"speed-up": result.speedup} | ({"recall %": result.recall} if result.recall else {})
    rows = [[k, *(f"{values[k]:.1f}" for values in columns.values())] for k in counts]
    out.print_table(["neighbors", *columns], rows)


def _exhaustive(
    table: "HashTable", encoded: "Encoded", y: list[Any], n_buckets: int, options: dict[str, Any]
) -> dict[int, float]:
    """Precision if every query looks into every bucket, by the number of neighbors."""
    import numpy as np

    counts, n = options["n_neighbors"], len(encoded)
    buckets = table.index.largest_buckets(limit=n_buckets)
    right = np.zeros((n, counts[-1]), np.bool_)
    step = max(1, _VISITS // n_buckets)
    for rows in (np.arange(at, min(at + step, n)) for at in range(0, n, step)):
        result = table.index.search(
            encoded.vectors[rows], bucket_ids=np.tile(buckets, (len(rows), 1)), fill="none",
            n_neighbors=counts[-1], exclude_self=rows if options["exclude_self"] else False,
            metric=table.metric,
        )  # fmt: skip
        expected = np.array([y[row] for row in rows], dtype=object)
        right[rows] = table.matches(result).labels == expected[:, None]
    return {k: 100.0 * float(right[:, :k].mean()) for k in counts}
