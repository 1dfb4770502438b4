"""Stored results on disk: one small file each, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from hashcade.errors import StorageError
from hashcade.report._row import ResultRow, RowKey


class RowStore:
    """The rows of an experiment and preset, in a folder of its own.

    Parameters
    ----------
    folder
        Made when the first row is put there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rows(self) -> list[ResultRow]:
        """All rows that are there, in the order of their keys."""
        files = sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []
        found = [ResultRow.from_json(file.read_text("utf-8"), str(file)) for file in files]
        return sorted(found, key=lambda row: row.key)

    def get(self, key: RowKey, fingerprint: str) -> ResultRow | None:
        """The row of this key if it was measured with these settings; None otherwise."""
        file = self.folder / key.file_name
        if not file.is_file():
            return None
        row = ResultRow.from_json(file.read_text("utf-8"), str(file))
        return row if (row.key, row.fingerprint) == (key, fingerprint) else None

    def put(self, row: ResultRow) -> None:
        """Store a row in place of an older one of its key."""
        write_whole(self.folder / row.key.file_name, row.to_json())


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one."""
    made = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with made.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        made.unlink(missing_ok=True)
