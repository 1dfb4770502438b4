"""What a service has promised to keep and not yet saved: commands read the index without it."""

from __future__ import annotations

from pathlib import Path

from hashcade.cli._errors import explained
from hashcade.cli._output import counted, say
from hashcade.errors import HashcadeError


def n_waiting(index: Path) -> int:
    """How many changes wait in the journal of an index. Raises what is wrong with it."""
    if not (index / "journal").is_dir():
        return 0
    from hashcade.serve._journal import waiting_changes

    return len(waiting_changes(index))


def say_what_waits(index: Path) -> None:
    """Say on stderr that an index is not all that a service has, if so."""
    try:
        say_count(index, n_waiting(index))
    except HashcadeError as error:  # of no concern to who reads the index alone
        say(f"hashcade: the journal is not read: {explained(error)}")


def say_count(index: Path, count: int) -> None:
    """Say on stderr how many changes wait, if any do."""
    if count:
        wait = "waits" if count == 1 else "wait"
        say(f"hashcade: {counted(count, 'change')} {wait} in the journal of {index}, not seen here")
