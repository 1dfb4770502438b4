"""``hashcade evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hashcade.cli._input import read_input
from hashcade.cli._model import check_kind, image_size_of, load_model
from hashcade.cli._options import Data, Items, Json, Labels, Model, Quiet, SkipBad, Split
from hashcade.cli._output import print_fields, print_json, print_table
from hashcade.errors import ConfigError


def evaluate(
    model: Model,
    data: Data,
    items_from: Annotated[
        Path | None,
        typer.Option(
            "--database",
            metavar="DATA",
            show_default="DATA itself, each item without itself",
            help="What is searched in.",
        ),
    ] = None,
    n_neighbors: Annotated[
        list[int] | None,
        typer.Option(
            "--n-neighbors",
            "-n",
            metavar="N",
            min=1,
            show_default="1, 4, 16",
            help="Neighbours asked for; may be given several times.",
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="Stay in the query's buckets. Without it: go on until there are enough, as in "
            "the paper.",
        ),
    ] = False,
    n_probe: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            show_default="as many as an item lies in",
            help="Begin with this many buckets.",
        ),
    ] = None,
    recall: Annotated[
        bool,
        typer.Option("--recall", help="Also the share of the truly nearest that is found (slow)."),
    ] = False,
    split: Split = None,
    database_split: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which part of the database, if it has several."),
    ] = None,
    items: Items = None,
    labels: Labels = None,
    skip_bad: SkipBad = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure a model on labelled items: precision and speed-up.

    Beside the precision of searching everything. NMI says how well buckets and classes agree.

    \b
    Examples:
      hashcade evaluate model/ test.npz
      hashcade evaluate model/ photos/ --split test --database photos/ --database-split train
      hashcade evaluate model/ test.npy -n 1 -n 10 --recall --json
    """
    if database_split is not None and items_from is None:
        items_from = data
    hasher = load_model(model)
    size = image_size_of(hasher)
    queries = read_input(
        data, need_labels=True, split=split, items=items, labels=labels,
        size=size, skip_bad=skip_bad, quiet=quiet,
    )  # fmt: skip
    check_kind(hasher, queries.items, queries.source, model)
    database = None
    if items_from is not None:
        database = read_input(
            items_from, need_labels=True, split=database_split, items=items, labels=labels,
            size=size, skip_bad=skip_bad, quiet=quiet,
        )  # fmt: skip
        check_kind(hasher, database.items, database.source, model)

    import numpy as np

    from hashcade.evaluate import evaluate_hasher, exact_search, precision_at

    # Both sides number their classes by themselves; the names are what they share.
    names = sorted({*queries.class_names, *(database.class_names if database else ())}, key=str)
    number = {name: at for at, name in enumerate(names)}
    asked = np.array([number[name] for name in queries.original_labels()])
    known = np.array([number[name] for name in database.original_labels()]) if database else asked
    if database is not None and not set(asked.tolist()) & set(known.tolist()):
        raise ConfigError(
            f"{queries.source} and {database.source} have no class in common; check --labels"
        )
    wanted = tuple(sorted(set(n_neighbors or (1, 4, 16))))
    result = evaluate_hasher(
        hasher, queries.items, asked,
        None if database is None else database.items, None if database is None else known,
        n_neighbors=wanted, protocol="plain" if plain else "paper", n_probe=n_probe, recall=recall,
    )  # fmt: skip
    vectors = hasher.embed(queries.items)
    others = vectors if database is None else hasher.embed(database.items)
    everything = exact_search(
        vectors, others, n_neighbors=max(wanted), same_set=database is None
    ).ids
    exact = {k: precision_at(everything, asked, known, n_neighbors=k) for k in wanted}
    if as_json:
        plain_exact = {str(k): value for k, value in exact.items()}
        print_json({**result.to_dict(), "exhaustive_precision": plain_exact})
        return
    print_fields(
        [
            ("queries", f"{result.n_queries:,} from {queries.source}"),
            ("database", f"{result.n_items:,} items in {result.n_occupied:,} buckets"),
            ("NMI", f"{result.nmi:.1f} % of buckets and classes"),
        ]
    )
    head = ["neighbours", "precision %", "exhaustive %", "speed-up"]
    rows = [
        [k, f"{result.precision[k]:.1f}", f"{exact[k]:.1f}", f"{result.speedup[k]:.1f}"]
        for k in wanted
    ]
    if result.recall is not None:
        head.append("recall %")
        rows = [[*row, f"{result.recall[k]:.1f}"] for row, k in zip(rows, wanted, strict=True)]
    print_table(head, rows)
