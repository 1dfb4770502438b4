"""A cache of features on disk, by the content of the image."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from hashcade._io import distrust_database, open_regular
from hashcade.errors import StorageError

if TYPE_CHECKING:
    from hashcade.data.extractor import ImageFeatures

Vectors = NDArray[np.float32]

_TABLE = "CREATE TABLE features (image BLOB PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID"
_WAIT = 60.0  # seconds for another process that writes


def feature_cache_directory() -> Path:
    """Default directory of the cache: ``$HASHCADE_CACHE``, or ``~/.cache/hashcade/features``."""
    directory = os.environ.get("HASHCADE_CACHE")
    return Path(directory) if directory else Path.home() / ".cache" / "hashcade" / "features"


class FeatureCache:
    """One SQLite file per network and image size; a batch is one transaction."""

    def __init__(self, directory: str | os.PathLike[str], features: ImageFeatures) -> None:
        record = features.record
        self._size = record.size
        digest = hashlib.sha256(repr((record, features.precision)).encode()).hexdigest()
        name = record.name.replace(" ", "-")
        self.path = Path(directory).expanduser() / f"{name}-{digest[:16]}.db"
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(self.path):
                open_regular(self.path).close()
            self._database = sqlite3.connect(self.path, timeout=_WAIT)
            distrust_database(self._database)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute(_TABLE.replace("TABLE", "TABLE IF NOT EXISTS", 1))
            schema = self._database.execute("SELECT sql FROM sqlite_schema WHERE sql NOT NULL")
            if schema.fetchall() != [(_TABLE,)]:
                raise sqlite3.DatabaseError("it has other tables than features")

    def get(self, key: bytes) -> dict[bytes, Vectors]:
        """Look up the features of an image by the checksum of its content."""
        with self._errors():
            query = "SELECT vector FROM features WHERE image = ?"
            row = self._database.execute(query, (key,)).fetchone()
        if row is None:
            return {}
        if not isinstance(row[0], bytes) or len(row[0]) != 4 * self._size:
            message = f"{self.path} is damaged: features must be {self._size} numbers"
            raise StorageError(message, hint="remove it")
        vector = np.frombuffer(row[0], "<f4")
        if not np.isfinite(vector).all():
            raise StorageError(f"{self.path} is damaged: it has NaN", hint="remove it")
        return {key: vector}

    def put(self, vectors: Mapping[bytes, Vectors]) -> None:
        """Store features; all of them or none."""
        rows = [(key, vector.astype("<f4").tobytes()) for key, vector in vectors.items()]
        with self._errors(), self._database:
            self._database.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            message = f"cannot use {self.path}: {error}"
            raise StorageError(message, hint="remove it, or set HASHCADE_CACHE") from None
