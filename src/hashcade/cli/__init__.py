"""The command line: thin commands on top of :class:`HashTable`.

Results go to stdout, everything else to stderr. ``docs/cli.md`` is generated from the help texts.
"""

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code."""
    import sys

    from hashcade.cli.app import make_app, run

    sys.exit(run(make_app(), sys.argv[1:]))
