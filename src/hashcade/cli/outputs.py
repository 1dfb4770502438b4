"""Results: directories and files that replace nothing by accident, and text on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from hashcade._io import new_directory, new_file, writer_lock
from hashcade.errors import StorageError

MODEL, TABLE = "model", "table"

# -- directories and files -------------------------------------------------------------------------


def kind_of(path: Path) -> str | None:
    """What a directory holds: ``"table"``, ``"model"``, or None."""
    for name, key, value, kind in (
        ("catalog.json", "format", "hashcade-table", TABLE),
        ("config.json", "kind", "hashcade model", MODEL),
    ):
        try:
            content = json.loads((path / name).read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and content.get(key) == value:
            return kind
    return None


def known_kind(path: Path) -> str:
    """What a directory holds, or a ``StorageError``."""
    if not path.exists():
        raise StorageError(f"{path} does not exist", hint="check the path")
    kind = kind_of(path)
    if kind is None:
        raise StorageError(
            f"{path} is neither a table nor a model",
            hint="make a table with: hashcade fit DATA -o TABLE",
        )
    return kind


def refuse_existing(path: Path, kind: str, *, force: bool) -> None:
    """Raise, before the work begins, if the result could not be put there.

    An empty directory is as good as none. With ``force`` a result of the same kind may be
    replaced, and nothing else ever is.
    """
    if not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir())):
        return
    if kind_of(path) != kind:
        raise StorageError(f"{path} exists and is not a {kind}", hint="choose another path")
    if not force:
        raise StorageError(f"{path} exists", hint="replace it with --force, or choose another path")
    with _held(path):
        pass


@contextmanager
def new_result(path: Path, kind: str, *, force: bool) -> Iterator[Path]:
    """Give an empty directory that takes the place of ``path`` at the end, or is removed.

    A table that a service has open is not replaced: its changes would go with it.
    """
    refuse_existing(path, kind, force=force)
    with _held(path), new_directory(path) as new:
        yield new


def _held(path: Path) -> Any:
    """Nobody writes to a table, and no service that can change it runs, meanwhile."""
    index = path / "index"
    return writer_lock(index) if index.is_dir() else nullcontext()


def refuse_existing_file(path: Path, *, force: bool) -> None:
    """Raise if a file cannot be written there."""
    if path.is_dir():
        raise StorageError(f"{path} is a directory", hint="give the name of a file")
    if path.exists() and not force:
        raise StorageError(f"{path} exists", hint="replace it with --force, or choose another path")


@contextmanager
def new_result_file(path: Path, *, force: bool) -> Iterator[Path]:
    """Give a name to write to; the file takes its place at the end, or is removed."""
    refuse_existing_file(path, force=force)
    with new_file(path) as new:
        yield new


# -- text ------------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Print one JSON value."""
    print(json.dumps(value, indent=1, ensure_ascii=False))


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one pair per line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        print(f"{name:{width}}  {value}")


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns: numbers to the right, text to the left. Nothing is cut off."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
    numeric = [all(_is_number(row[at]) for row in rows) for at in range(len(head))]
    for line in [list(head), *texts]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  " + "  ".join(cells).rstrip())


def say(text: str) -> None:
    """Print something that is not a result, on stderr."""
    print(text, file=sys.stderr, flush=True)


def percent(share: float) -> str:
    """A share as per cent."""
    return f"{100 * share:.1f} %"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 bucket, 2 buckets."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _is_number(cell: object) -> bool:
    if isinstance(cell, str):
        return cell.replace(".", "", 1).isdigit()
    return isinstance(cell, int | float)


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)
