"""``hashcade demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hashcade._extras import check_extras
from hashcade.cli._options import Quiet


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the results.")
    ] = Path("demo"),
    steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="Batches of each of the two stages of training.")
    ] = 200,
    quiet: Quiet = False,
) -> None:
    """Show the whole way on handwritten digits: learn, build, search, draw.

    Takes about a minute, and downloads nothing. Needs the extra demo (torch, scikit-learn,
    matplotlib).

    \b
    Examples:
      hashcade demo
      hashcade demo --output /tmp/digits --steps 50
    """
    check_extras(torch="demo", sklearn="demo", matplotlib="demo")
    from hashcade.demo import run

    run(output, steps, verbose=not quiet)
