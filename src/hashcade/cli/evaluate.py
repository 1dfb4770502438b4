"""``hashcade evaluate``."""

from __future__ import annotations

from typing import Annotated, Any

from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli.inputs import labels_of, load_table, read_and_encode, root_of
from hashcade.errors import ConfigError

_COUNTS = opt.number("Results per query; repeatable.", "--n-neighbors", "-n", default="1, 10")
_EXCLUDE = "DATA is what the table was filled with: query i must not find item i."
_RECALL = "Also the share of the truly nearest items (slow)."


def evaluate(
    table: opt.Table,
    data: opt.Data,
    n_neighbors: Annotated[list[int] | None, _COUNTS] = None,
    n_probe: opt.NProbe = 1,
    fill: opt.Fill = True,
    exclude_self: Annotated[bool, opt.flag("--exclude-self", _EXCLUDE)] = False,
    recall: Annotated[bool, opt.flag("--recall", _RECALL)] = False,
    split: opt.Split = None,
    items: opt.Items = None,
    labels: opt.Labels = None,
    skip_bad: opt.SkipBad = False,
    quiet: opt.Quiet = False,
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
    queries, encoded = read_and_encode(
        opened.hasher, table, data, need_labels=True, split=split, items=items, labels=labels,
        skip_bad=skip_bad, quiet=quiet,
    )  # fmt: skip
    y = labels_of(queries) or []
    if not set(y) & set(opened.catalog.classes):
        raise ConfigError(f"{data} and {table} have no class in common", hint="check --labels")
    if root_of(data, split, queries) == opened.catalog.data and not exclude_self:
        out.say("hashcade: queries find themselves; leave them out with --exclude-self")
    counts = tuple(sorted(set(n_neighbors or (1, 10))))
    same: dict[str, Any] = {"n_neighbors": counts, "exclude_self": exclude_self}
    protocol = "paper" if fill else "plain"
    result = opened.evaluate(encoded, y, n_probe=n_probe, protocol=protocol, recall=recall, **same)
    everything = opened.evaluate(encoded, y, n_probe=max(2, result.n_occupied), **same).precision
    exhaustive = {str(k): value for k, value in everything.items()}
    out.report(
        as_json,
        {**result.to_dict(), "exhaustive_precision": exhaustive},
        ("queries", f"{result.n_queries:,} from {queries.source}"),
        ("table", f"{result.n_items:,} items in {result.n_occupied:,} buckets"),
        ("NMI", f"{result.nmi:.1f} % of buckets and classes"),
    )
    if as_json:
        return
    head = ["neighbors", "precision %", "exhaustive %", "speed-up"]
    rows: list[list[object]] = [
        [k, f"{result.precision[k]:.1f}", f"{everything[k]:.1f}", f"{result.speedup[k]:.1f}"]
        for k in counts
    ]
    if result.recall is not None:
        head.append("recall %")
        rows = [[*row, f"{result.recall[k]:.1f}"] for row, k in zip(rows, counts, strict=True)]
    out.print_table(head, rows)
