"""``hashcade verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hashcade.cli._directory import kind_of
from hashcade.cli._errors import ERROR, explained
from hashcade.cli._journal import n_waiting, say_count
from hashcade.cli._model import load_model
from hashcade.cli._options import Json
from hashcade.cli._output import print_json, say
from hashcade.errors import CorruptIndexError, HashcadeError, StorageError


def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="INDEX or MODEL ...", show_default=False, help="What is to be checked."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Read all of an index or a model, and check every checksum.

    Of an index also: that its model, if it is still there, is the one that it was built with; and
    the changes of a service that wait in its journal.
    Leaves with exit code 2 if anything is wrong.

    \b
    Examples:
      hashcade verify index/
      hashcade verify model/ index/ --json
    """
    found = {str(path): _problems(path) for path in paths}
    bad = sum(bool(problems) for problems in found.values())
    if as_json:
        print_json({"ok": not bad, "problems": found})
    else:
        for path, problems in found.items():
            for line in problems or ["ok"]:
                print(f"{path}: {line}" if not line.startswith(path) else line)
    if bad:
        say(f"hashcade: {bad} of {len(found)} damaged; make them again, or restore a copy")
        raise typer.Exit(ERROR)


def _problems(path: Path) -> list[str]:
    """Everything that is wrong with what is at a path."""
    if not path.exists():
        raise StorageError(f"{path} does not exist; check the path")
    kind = kind_of(path)
    try:
        if kind == "model":
            load_model(path)
        elif kind == "index":
            return _index_problems(path)
        else:
            return ["neither a model nor an index"]
    except HashcadeError as error:
        return [explained(error)]
    return []


def _index_problems(path: Path) -> list[str]:
    from hashcade.index import HashIndex, read_origin

    problems: list[str] = []
    try:
        HashIndex.load(path).verify()
    except CorruptIndexError as error:
        problems += str(error).splitlines()
    try:
        say_count(path, n_waiting(path))
    except HashcadeError as error:
        problems += [line for line in str(error).splitlines() if line not in problems]
    if problems:
        return problems
    origin = read_origin(path)
    if origin is not None:
        _ = origin.names  # has a checksum of its own
        if origin.model is not None and origin.model.exists():
            origin.check_model(origin.model)
    return []
