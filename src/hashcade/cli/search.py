"""``hashcade search`` and ``hashcade evaluate``."""

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli import warn
from hashcade.cli.inputs import labels_of, load_model, load_table, read_and_encode
from hashcade.errors import ConfigError

if TYPE_CHECKING:
    from hashcade.index import Encoded
    from hashcade.table import HashTable

_DEFAULT_SHOW = 10  # queries
_EQUAL_DISTANCE = 1e-5  # relative distance up to which vectors count as equal
_QUERY = "An image, a folder of images, or vectors as .npy, .npz or Parquet."
_MAX_CANDIDATES = "Compare a query with at most this many items."
_COUNTS = opt.number("Results per query; repeatable.", "--n-neighbors", "-n", default="1, 10")
_EVALUATED = "A table, or with --database-items also a model."
_DATABASE = "Search these labelled items with the model of TABLE, instead of its own items."
_SHOW = "Number of queries to print results of; --json prints all."


def search(
    table: opt.Table,
    query: Annotated[Path, opt.argument("QUERY", _QUERY)],
    n_neighbors: Annotated[int, opt.number("Results per query.", "--n-neighbors", "-n")] = 10,
    n_probe: opt.NProbe = 1,
    max_candidates: Annotated[int | None, opt.number(_MAX_CANDIDATES, default="no limit")] = None,
    fill: opt.Fill = True,
    where: opt.Where = None,
    show: Annotated[int, opt.number(_SHOW)] = _DEFAULT_SHOW,
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
      hashcade search table/ query.jpg --n-probe 4     more buckets: better recall
      hashcade search table/ query.jpg --where 'price<10' --where label=cat
    """
    hash_table = load_table(table)
    reading = opt.Reading(split=split, items=items, quiet=quiet)
    queries, encoded = read_and_encode(hash_table.hasher, table, query, reading, False, n_probe)
    matches = hash_table.search(
        encoded, n_neighbors, n_probe=n_probe, max_candidates=max_candidates, fill=fill,
        where=opt.parse_where(where),
    )  # fmt: skip
    names = queries.names or tuple(f"row {row}" for row in range(len(queries)))
    if not as_json and len(names) > show:
        hint = f"--show {len(names)} or --json gives all"
        out.say(f"hashcade: the first {show:,} of {len(names):,} queries; {hint}")
        names = names[:show]
    results = [
        {
            "query": name,
            "buckets": hash_table.index.shape.paths(encoded.bucket_ids[row]).tolist(),
            "candidates": int(matches.candidates[row]),
            "truncated": bool(matches.truncated[row]),
            "exact": bool(matches.exact[row]),
            "results": [asdict(match) for match in matches[row]],
        }
        for row, name in enumerate(names)
    ]
    out.report(as_json, {"table": str(table), "n_items": len(hash_table), "queries": results})
    for number, result in enumerate(results if not as_json else ()):
        out.show(*[""] * bool(number))
        _print_result(result, len(hash_table))


def _print_result(result: dict[str, Any], n_items: int) -> None:
    """Print the matches of a query as a table."""
    paths = " and ".join("/".join(map(str, path)) for path in result["buckets"])
    out.show(f"{result['query']} is in bucket {paths}")
    matches = result["results"]
    columns = [name for name in ("name", "label") if any(m[name] is not None for m in matches)]
    payload = [m["payload"] or {} for m in matches]
    fields = list(dict.fromkeys(field for values in payload for field in values))
    rows = [
        [rank, m["id"], *(m[name] for name in columns), f"{m['distance']:.4f}",
         *(_cell(values.get(field)) for field in fields)]
        for rank, (m, values) in enumerate(zip(matches, payload, strict=True), 1)
    ]  # fmt: skip
    if rows:
        out.print_table(["#", "id", *columns, "distance", *fields], rows)
    else:
        print("  no results")
    count, limit = result["candidates"], "; stopped at --max-candidates"
    share = f"1 in {n_items / max(1, count):.1f}{limit if result['truncated'] else ''}"
    print(f"  {count:,} candidates of {n_items:,} items, {share}")


def _cell(value: Any) -> str | None:
    """A payload value as a table cell."""
    if value is None or isinstance(value, str):
        return value and " ".join(value.split())
    return json.dumps(value, ensure_ascii=False)


def evaluate(
    table: Annotated[Path, opt.argument("TABLE", _EVALUATED)],
    data: opt.Data,
    *,
    database_items: Annotated[Path | None, opt.option(_DATABASE, metavar="DATA")] = None,
    database_split: Annotated[str | None, opt.option("Split of --database-items.")] = None,
    n_neighbors: Annotated[list[int] | None, _COUNTS] = None,
    n_probe: opt.NProbe = 1,
    fill: opt.Fill = True,
    reading: opt.Reading,
    as_json: opt.Json = False,
) -> None:
    """Evaluate a table with labelled queries: precision, recall, speed-up and time.

    Precision is the share of results with the query's label, next to that of exhaustive search;
    recall is the share of the true nearest neighbors; speed-up is how many times fewer items were
    compared. NMI measures the agreement of buckets and classes. If the queries are the items of
    the table, each is excluded from its own results.

    \b
    Examples:
      hashcade evaluate table/ test.npz
      hashcade evaluate table/ photos/ --split test -n 1 -n 10
      hashcade evaluate model/ test.npz --database-items train.npz
    """
    if database_items is None:
        hash_table, database = load_table(table), table
        if database_split is not None:
            hint = "add --database-items, or leave it out"
            raise ConfigError(f"--database-split={database_split} is for other items", hint=hint)
    else:
        database_reading = replace(reading, split=database_split)
        hash_table, database = _build_table(table, database_items, database_reading), database_items
    queries, encoded = read_and_encode(hash_table.hasher, table, data, reading, True, n_probe)
    y = labels_of(queries) or []
    if not set(y) & set(hash_table.catalog.classes):
        raise ConfigError(f"{data} and {database} have no class in common", hint="check --labels")
    exclude, warnings = _exclusions(hash_table, encoded)
    counts = tuple(sorted(set(n_neighbors or (1, 10))))
    result = hash_table.evaluate(
        encoded, y, n_probe=n_probe, protocol="paper" if fill else "plain", recall=True,
        n_neighbors=counts, exclude_self=exclude,
    )  # fmt: skip
    exhaustive, recall = result.exhaustive_precision or {}, result.recall or {}
    milliseconds = {}
    for k in counts:
        start = time.perf_counter()
        hash_table.search(encoded, k, n_probe=n_probe, fill=fill, exclude_self=exclude)
        milliseconds[k] = 1000 * (time.perf_counter() - start) / len(encoded)
    stats = hash_table.stats()
    item_labels = [label for label, c in stats["classes"].items() for _ in range(c["n_entries"])]
    smallest = counts[0]
    warnings += warn.about_precision(
        result.precision[smallest], warn.chance(item_labels, y), exhaustive[smallest],
        images=hash_table.hasher is not None and hash_table.hasher.config_.takes_images,
    )  # fmt: skip
    warnings = out.warn(warnings + warn.about_buckets(stats))
    times = {str(k): value for k, value in milliseconds.items()}
    out.report(
        as_json,
        {**result.to_dict(), "milliseconds": times, "warnings": warnings},
        ("queries", f"{result.n_queries:,} from {queries.source}"),
        ("table", f"{result.n_items:,} items in {result.n_occupied:,} buckets"),
        ("NMI", f"{result.nmi:.1f} % of buckets and classes"),
    )
    if as_json:
        return
    columns = {
        "precision %": result.precision, "exhaustive %": exhaustive, "recall %": recall,
        "speed-up": result.speedup,
    }  # fmt: skip
    rows = [
        [k, *(f"{values[k]:.1f}" for values in columns.values()), f"{milliseconds[k]:.3f} ms"]
        for k in counts
    ]
    out.print_table(["neighbors", *columns, "time a query"], rows)


def _build_table(path: Path, data: Path, reading: opt.Reading) -> "HashTable":
    """Build a table in memory from labelled items, with a model or that of a table."""
    from hashcade.table import HashTable

    if out.require_kind(path) == out.TABLE:
        source = load_table(path)
        hasher, metric, place = source.hasher, source.metric, source.catalog.place
    else:
        hasher, metric, place = load_model(path), "euclidean", "label"
    items, encoded = read_and_encode(hasher, path, data, reading, True)
    table = HashTable.from_parts(hasher, metric=metric)
    table.catalog.place = place
    table.add(encoded, labels=labels_of(items))
    return table


def _exclusions(table: "HashTable", encoded: "Encoded") -> tuple[Any, list[str]]:
    """Ids to exclude from the results of each query, or False; and warnings."""
    equal_ids = _equal_items(table, encoded)
    n_shared = sum(item is not None for item in equal_ids)
    if n_shared == len(equal_ids):
        out.say("queries are items of the table: each one is left out of its own results")
        return equal_ids, []
    if n_shared:
        message = f"{n_shared:,} of {len(equal_ids):,} queries are in the table and find themselves"
        return False, [f"{message}; give queries that are not in it"]
    return False, []


def _equal_items(table: "HashTable", encoded: "Encoded") -> list[int | str | None]:
    """For each query, the id of an item with an equal vector, preferably its row number."""
    import numpy as np

    vectors, rows = encoded.vectors, list(range(len(encoded)))
    tolerance = _EQUAL_DISTANCE * np.linalg.norm(vectors, axis=1)
    if all(
        row in table and np.linalg.norm(table[row].vector - vectors[row]) <= tolerance[row]
        for row in rows
    ):
        return list(rows)
    nearest = table.index.search(
        vectors, **encoded.where_to_look(1), n_neighbors=1, metric="euclidean"
    )
    ids = table.matches(nearest).ids[:, 0].tolist()
    is_equal = nearest.distances[:, 0] <= tolerance
    return [item if equal else None for item, equal in zip(ids, is_equal, strict=True)]
