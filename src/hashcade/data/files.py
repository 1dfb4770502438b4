"""Paths that users give, and the errors of other packages in one line."""

from __future__ import annotations

import os
from pathlib import Path

from hashcade.errors import DataError

AnyPath = str | os.PathLike[str]


def existing_path(path: AnyPath) -> Path:
    """Return a path, with ``~`` expanded, to something that exists."""
    expanded = Path(path).expanduser()
    if not expanded.exists():
        raise DataError(f"{expanded} does not exist", hint="check the path")
    return expanded


def one_line(error: BaseException) -> str:
    """Put the error of another package into one line: ``(OSError: ...)``."""
    return f"({type(error).__name__}: {' '.join(str(error).split())})"
