"""Output of the commands: directories and files, and text on stdout."""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from hashcade._io import new_directory, new_file, writer_lock
from hashcade.errors import StorageError

TABLE, MODEL, FILE = "table", "model", "file"
OK, INTERNAL, ERROR, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143  # exit codes
SHAPE = "width {width}, depth {depth}, sparsity {sparsity}"
OCCUPIED = "{n_occupied:,} of {n_buckets:,} are occupied"
_NUMBER = re.compile(r"([\d,]+(\.\d+)?( s)?)?")


def kind_of(path: Path) -> str | None:
    """What is at a path: ``"table"``, ``"model"``, ``"file"``, or None."""
    if (path / "items.db").is_file():  # not opened: closing it would release locks of SQLite
        return TABLE
    config = path / "config.json"
    if config.is_file() and b'"hashcade model"' in config.read_bytes():
        return MODEL
    return FILE if path.is_file() else None


def require_kind(path: Path) -> str:
    """``"table"`` or ``"model"``; a ``StorageError`` for anything else."""
    kind = kind_of(path)
    if kind not in (TABLE, MODEL):
        what = "is neither a table nor a model" if path.exists() else "does not exist"
        hint = "check the path, or make a table with: hashcade fit DATA -o TABLE"
        raise StorageError(f"{path} {what}", hint=hint)
    return kind


def refuse_existing(path: Path, kind: str, *, force: bool) -> None:
    """Raise, before the work begins, if a result cannot be written to ``path``.

    An empty directory may be replaced by a table or a model. With ``force`` a result of the same
    kind may be replaced, but never anything else.
    """
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise StorageError(f"{parent} is not a directory", hint="choose another path")
    is_empty = kind != FILE and path.is_dir() and not any(path.iterdir())
    if not os.path.lexists(path) or is_empty:
        return
    if kind_of(path) != kind:
        raise StorageError(f"{path} exists and is not a {kind}", hint="choose another path")
    if not force:
        raise StorageError(f"{path} exists", hint="replace it with --force, or choose another path")
    with _table_lock(path):
        pass


@contextmanager
def new_result(path: Path, kind: str, *, force: bool) -> Iterator[Path]:
    """Yield an empty directory, or the name of a file, that replaces ``path`` at the end.

    After an error it is removed. A table that a service has open is not replaced: changes of the
    service would be lost.
    """
    refuse_existing(path, kind, force=force)
    with _table_lock(path), new_file(path) if kind == FILE else new_directory(path) as new:
        yield new


def _table_lock(path: Path) -> Any:
    """Hold the writer lock of a table at this path, if there is one."""
    index = path / "index"
    return writer_lock(index) if index.is_dir() else nullcontext()


def printable(text: object) -> str:
    """Text for a terminal: control characters and bidirectional marks are escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def show(*lines: object) -> None:
    """Print lines of a result, escaped: they may have names from untrusted files."""
    for line in lines:
        print(printable(line))


def report(as_json: bool, result: dict[str, Any], *fields: tuple[str, object]) -> None:
    """Print a result, as JSON or as one name and value per line."""
    if as_json:
        text = json.dumps(result, indent=1, ensure_ascii=False)
        print("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))
        return
    width = max((len(name) for name, _ in fields), default=0)
    for name, value in fields:
        show(f"{name:{width}}  {value}")


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns: numbers to the right, text to the left."""
    texts = [["-" if cell is None else printable(cell) for cell in row] for row in rows]
    columns = []
    for column in zip(map(printable, head), *texts, strict=True):
        width = max(map(len, column))
        numeric = all(_NUMBER.fullmatch(cell) for cell in column[1:])
        columns.append([cell.rjust(width) if numeric else cell.ljust(width) for cell in column])
    for line in zip(*columns, strict=True):
        print("  " + "  ".join(line).rstrip())


def say(text: str) -> None:
    """Print a message on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def warn(warnings: Sequence[str]) -> list[str]:
    """Print warnings on stderr, one line each, and return them for the JSON result."""
    for line in warnings:
        say(f"hashcade: warning: {line}")
    return list(warnings)


def pluralize(number: int, noun: str) -> str:
    """A number with its noun: 1 bucket, 2 buckets."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
