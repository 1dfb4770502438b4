"""``hashcade verify``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hashcade._io import read_file
from hashcade.cli import options as opt
from hashcade.cli.errors import ERROR, explained
from hashcade.cli.inputs import load_without_model
from hashcade.cli.outputs import MODEL, known_kind, print_json, say
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
        print_json({"ok": not bad, "problems": problems})
    else:
        for path, lines in problems.items():
            for line in lines or ["ok"]:
                print(line if line.startswith(path) else f"{path}: {line}")
    if bad:
        say(f"hashcade: {bad} of {len(problems)} damaged; restore a copy, or make it again")
        raise typer.Exit(ERROR)


def _problems(path: Path) -> list[str]:
    """Everything that is wrong with a table or a model."""
    if known_kind(path) == MODEL:
        return _errors(_check_model, path)
    from hashcade.table import MODEL_DIR

    problems = _errors(lambda: load_without_model(path).index.verify())
    if (path / MODEL_DIR).is_dir():
        problems += _errors(_check_model, path / MODEL_DIR)
    return problems


def _errors(check: Callable[..., None], *arguments: Any) -> list[str]:
    try:
        check(*arguments)
    except CorruptIndexError as error:
        return str(error).splitlines()  # all that is damaged
    except HashcadeError as error:
        return [explained(error)]
    return []


def _check_model(path: Path) -> None:
    """Compare the weights of a model with their checksum."""
    from hashcade.learn import read_config

    weights = path / "model.safetensors"
    expected = read_config(path)["model_sha256"]
    if hashlib.sha256(read_file(weights)).hexdigest() != expected:
        raise CorruptIndexError(f"{weights} is damaged: its checksum is wrong")
