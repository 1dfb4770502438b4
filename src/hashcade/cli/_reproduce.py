"""``hashcade reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hashcade._extras import check_extras
from hashcade.cli._options import Json, Quiet
from hashcade.cli._output import print_fields, print_json


def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT",
            show_default=False,
            help="cifar100, imagenet, imagenet-split, solver-time or ablation.",
        ),
    ],
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="paper (a day on a GPU), cpu (from scratch), transfer (on features), or smoke "
            "(two minutes, on digits; its figures mean nothing).",
        ),
    ] = "cpu",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            show_default="the variable HASHCADE_DATA",
            help="Folder with the official files of the data set.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for rows and page.")
    ] = Path("reproduction"),
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="in the cache folder",
            help="Folder for models and features, which can be computed again.",
        ),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", min=0, show_default="0", help="Seeds; may be given several times."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Methods, losses, sparsities: ours, npairs, k1, ..."),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            show_default="all of the preset",
            help="Cut every stage of training, to see that it runs.",
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run the experiments of the paper again, beside its tables.

    Results are kept row by row: the same command goes on after a break.

    \b
    Examples:
      hashcade reproduce cifar100 --preset smoke
      hashcade reproduce cifar100 --data cifar-100-python/ --preset cpu -o paper/
      hashcade reproduce ablation --only ours --only npairs --seed 0 --seed 1
    """
    check_extras(torch="train", sklearn="baselines", matplotlib="report")
    from hashcade.reproduce import reproduce as run

    done = run(
        experiment, preset, out=output, work=work, data=data, seeds=tuple(seed or (0,)),
        only=only, max_steps=max_steps, verbose=not quiet,
    )  # fmt: skip
    page = None if done.page is None else str(done.page)
    if as_json:
        rows = len(done.rows)
        print_json(
            {"page": page, "n_rows": rows, "n_computed": done.n_computed, "seconds": done.seconds}
        )
    else:
        print_fields(
            [
                ("page", page),
                ("rows", f"{len(done.rows):,}, of which {done.n_computed:,} are new"),
            ]
        )
