"""``hashcade verify``."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from hashcade._io import read_file
from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli.errors import ERROR
from hashcade.cli.inputs import load_table, model_path
from hashcade.errors import CorruptIndexError, HashcadeError


def verify(
    paths: Annotated[list[Path], opt.argument("TABLE or MODEL ...", "What to check.")],
    as_json: opt.Json = False,
) -> None:
    """Read all of a table or a model, and check every checksum. Needs no torch.

    Of a table: its model, its index, its labels and names, and the changes of a service that
    are not yet saved. The exit code is 2 if anything is wrong.

    \b
    Examples:
      hashcade verify table/
      hashcade verify table/ model/ --json
    """
    problems = {str(path): _problems(path) for path in paths}
    bad = sum(map(bool, problems.values()))
    if as_json:
        out.print_json({"ok": not bad, "problems": problems})
    else:
        for path, lines in problems.items():
            for line in lines or ["ok"]:
                print(line if line.startswith(path) else f"{path}: {line}")
    if bad:
        out.say(f"hashcade: {bad} of {len(problems)} damaged; restore a copy, or make it again")
        raise typer.Exit(ERROR)


def _problems(path: Path) -> list[str]:
    """Everything that is wrong with a table or a model."""
    problems: list[str] = []
    table = out.known_kind(path) == out.TABLE
    for check in (_check_index, _check_model) if table else (_check_model,):
        try:
            check(path)
        except HashcadeError as error:
            problems += str(error).splitlines()  # all that is damaged
    return problems


def _check_index(path: Path) -> None:
    load_table(path, model=False).index.verify()


def _check_model(path: Path) -> None:
    """Compare the weights of a model with their checksum; a table may have none."""
    from hashcade.learn import read_config

    model = model_path(path)
    if not model.is_dir():
        return
    weights, expected = model / "model.safetensors", read_config(model)["model_sha256"]
    if hashlib.sha256(read_file(weights)).hexdigest() != expected:
        raise CorruptIndexError(f"{weights} is damaged: its checksum is wrong")
