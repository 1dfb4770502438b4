"""The command line: every verb of the library, thin over :class:`HashTable`.

Results go to stdout, everything else to stderr. ``docs/cli.md`` is made from the help texts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    from hashcade.cli.app import make_app
    from hashcade.cli.errors import run

    sys.exit(run(make_app(), arguments))
