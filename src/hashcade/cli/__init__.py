"""The command line: every verb of the library, thin over :class:`HashTable`.

``hashcade --help`` lists the verbs, ``hashcade fit --help`` explains one with examples, and
``docs/cli.md`` is made from the same texts. Results go to stdout, everything else to stderr.

Exit codes: 0 success; 1 an internal error; 2 an error that the message explains; 130 stopped by
Ctrl-C; 143 stopped by SIGTERM. In no case is a half-written result left behind.
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
