"""What a stored index remembers of where it came from: the model, the data, the names.

Bucket ids mean something to the one model that gave them. An index made by the command line
therefore has two more files beside the manifest, which the index itself does not look at::

    index/
        origin.json    the model with its fingerprint, the data, names of the classes
        names.json     what each item is called, by id; missing if items have no names

They stay when an index that was loaded from the directory is saved back to it, for it is the same
index with changes. When any other index is saved into the directory, they are removed: they spoke
of what was there before.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hashcade.errors import CorruptIndexError, IncompatibleFormatError, StorageError

ORIGIN_NAME = "origin.json"
NAMES_NAME = "names.json"
FORMAT = "hashcade-origin"
VERSION = 1


@dataclass(frozen=True)
class Origin:
    """Where a stored index came from.

    Attributes
    ----------
    directory
        The directory of the index.
    model, data : Path or None
        Where the model and the data were. They may have been moved since.
    model_fingerprint : str or None
        See :func:`model_fingerprint`.
    class_names : tuple of int or str
        The class that label ``c`` of the index stands for: ``class_names[c]``.
    """

    directory: Path
    model: Path | None
    data: Path | None
    model_fingerprint: str | None
    class_names: tuple[int | str, ...]
    names_sha256: str | None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What item ``i`` is called: ``names[i]``. Empty if the items of the data had no names.

        Items that were added later have larger ids and no name here.
        """
        if self.names_sha256 is None:
            return ()
        path = self.directory / NAMES_NAME
        content = _read(path)
        if hashlib.sha256(content).hexdigest() != self.names_sha256:
            raise CorruptIndexError(f"{path} is damaged: its checksum is wrong")
        return tuple(json.loads(content))

    def class_name(self, label: int | None) -> int | str | None:
        """The class of a label; the label itself if it has no name."""
        if label is None or not 0 <= label < len(self.class_names):
            return label
        return self.class_names[label]

    def item_name(self, item_id: int) -> str | None:
        """What an item is called, if it has a name."""
        return self.names[item_id] if 0 <= item_id < len(self.names) else None

    def check_model(self, path: str | os.PathLike[str]) -> None:
        """Raise ``StorageError`` if ``path`` holds another model than the index was built with."""
        if self.model_fingerprint is None:
            return
        found = model_fingerprint(path)
        if found != self.model_fingerprint:
            raise StorageError(
                f"{self.directory} was built with another model: it has the fingerprint "
                f"{self.model_fingerprint[:12]}, {Path(path)} has {found[:12]}"
            )


def model_fingerprint(path: str | os.PathLike[str]) -> str:
    """Digest that tells models apart: the weights' checksum, and how they are put together."""
    file = Path(path) / "config.json"
    try:
        config = json.loads(_read(file))
        parts = {"model_sha256": config["model_sha256"], "plan": config["plan"]}
    except StorageError:
        raise StorageError(f"{Path(path)} is no hashcade model: config.json is missing") from None
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndexError(f"{file} is damaged: {error!r}") from None
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def read_origin(directory: str | os.PathLike[str]) -> Origin | None:
    """Read where a stored index came from; None if it does not say."""
    home = Path(directory)
    path = home / ORIGIN_NAME
    if not path.exists():
        return None
    try:
        stored = json.loads(_read(path))
        if stored["format"] != FORMAT or stored["version"] != VERSION:
            raise IncompatibleFormatError(
                f"{path} has format {stored['format']!r} version {stored['version']}, "
                f"this package reads {FORMAT!r} version {VERSION}"
            )
        return Origin(
            directory=home,
            model=_resolved(home, stored["model"]),
            data=_resolved(home, stored["data"]),
            model_fingerprint=stored["model_fingerprint"],
            class_names=tuple(stored["class_names"]),
            names_sha256=stored["names_sha256"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndexError(f"{path} is damaged: {error!r}") from None


def write_origin(
    directory: Path,
    *,
    final: Path | None = None,
    model: Path | None,
    data: Path | None,
    fingerprint: str | None,
    class_names: tuple[int | str, ...],
    names: tuple[str, ...],
) -> None:
    """Write the two files into the directory of an index.

    ``final`` is where the directory will stand, if it is to be moved: paths are kept relative to
    it, so that model, data and index can be moved together.
    """
    home = (final or directory).absolute()
    names_sha256 = None
    if names:
        content = json.dumps(names, ensure_ascii=False).encode()
        names_sha256 = hashlib.sha256(content).hexdigest()
        _write(directory / NAMES_NAME, content)
    origin = {
        "format": FORMAT,
        "version": VERSION,
        "model": _both_ways(home, model),
        "data": _both_ways(home, data),
        "model_fingerprint": fingerprint,
        "class_names": list(class_names),
        "names_sha256": names_sha256,
    }
    text = json.dumps(origin, indent=1, ensure_ascii=False) + "\n"
    _write(directory / ORIGIN_NAME, text.encode())


def forget_origin(directory: Path) -> None:
    """Remove the two files, if they are there: the directory has another index now."""
    for name in (ORIGIN_NAME, NAMES_NAME):  # in this order: names alone mean nothing
        try:
            (directory / name).unlink(missing_ok=True)
        except OSError as error:
            where = directory / name
            raise StorageError(f"cannot remove {where}: {error.strerror or error}") from error


def _both_ways(home: Path, path: Path | None) -> dict[str, str] | None:
    if path is None:
        return None
    there = path.absolute()
    return {"relative": os.path.relpath(there, home), "absolute": str(there)}


def _resolved(home: Path, stored: Mapping[str, Any] | None) -> Path | None:
    """The place itself, or else where it was: moved along with the index, or left behind."""
    if stored is None:
        return None
    relative = Path(os.path.normpath(home.absolute() / stored["relative"]))
    absolute = Path(stored["absolute"])
    return absolute if absolute.exists() and not relative.exists() else relative


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
