"""``hashcade add`` and ``hashcade remove``."""

from __future__ import annotations

from typing import Annotated

from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli.inputs import labels_of, load_table, read_and_encode, root_of


def add(
    table: opt.Table,
    data: opt.Data,
    split: opt.Split = None,
    items: opt.Items = None,
    labels: opt.Labels = None,
    skip_bad: opt.SkipBad = False,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Add items to a table. The model stays as it is; labels are not needed.

    Ids follow the largest id that the table ever had.

    \b
    Examples:
      hashcade add table/ more-photos/
      hashcade add table/ new.npy --json       prints the ids
    """
    opened = load_table(table)
    found, encoded = read_and_encode(
        opened.hasher, table, data, split=split, items=items, labels=labels, skip_bad=skip_bad,
        quiet=quiet,
    )  # fmt: skip
    root, names = root_of(data, split, found), list(found.names)
    if root != opened.catalog.data:  # names begin in the folder that the table was filled from
        names = [str(root / name) for name in names]
    ids = opened.add(encoded, labels=labels_of(found), names=names or None)
    opened.save(table)
    result = {"table": str(table), "ids": ids.tolist(), "n_items": len(opened)}
    span = f", ids {ids.min()} to {ids.max()}" if len(ids) else ""
    added = out.counted(len(ids), "item") + span
    out.report(as_json, result, ("added", added), ("table", out.counted(len(opened), "item")))


def remove(
    table: opt.Table,
    ids: Annotated[list[int], opt.argument("ID...", "Ids of items.")],
    as_json: opt.Json = False,
) -> None:
    """Remove items from a table. If one of the ids is not there, nothing is removed.

    \b
    Examples:
      hashcade remove table/ 17
      hashcade remove table/ 17 4 2019
    """
    opened = load_table(table)
    opened.remove(ids)
    opened.save(table)
    result = {"table": str(table), "removed": len(ids), "n_items": len(opened)}
    removed, left = out.counted(len(ids), "item"), out.counted(len(opened), "item")
    out.report(as_json, result, ("removed", removed), ("table", left))
