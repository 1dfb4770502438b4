"""``hashcade reproduce``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from hashcade._extras import check_extra
from hashcade.cli._options import Json, Quiet
from hashcade.cli._output import print_json


def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT",
            show_default=False,
            help="cifar100, ablation, imagenet or imagenet-split.",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The official files of the data set. Not for smoke."),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="paper (a day on a GPU), cpu, transfer, or smoke (two minutes, on digits; its "
            "figures mean nothing).",
        ),
    ] = "cpu",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for results and report.")
    ] = Path("reproduction"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run the experiments of the paper again, beside its tables.

    Results are kept row by row: the same command goes on after a break.

    \b
    Examples:
      hashcade reproduce cifar100 --preset smoke
      hashcade reproduce cifar100 --data cifar-100-python/ --preset cpu -o paper/
    """
    check_extra("torch", "train")
    module: Any = import_module("hashcade.reproduce")
    result = module.reproduce(
        experiment, preset=preset, data=data, output=output, verbose=not quiet
    )
    if as_json:
        print_json(result)
