"""Results that are directories or files: there whole, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hashcade.errors import StorageError


def kind_of(path: Path) -> str | None:
    """What a directory holds: ``"model"``, ``"index"``, or None."""
    try:
        config = json.loads((path / "config.json").read_bytes())
        if isinstance(config, dict) and config.get("kind") == "hashcade model":
            return "model"
    except (OSError, ValueError):
        pass
    return "index" if (path / "manifest.json").is_file() else None


def refuse_existing(path: Path, kind: str, *, force: bool) -> None:
    """Say so before the work begins if the result could not be put in its place.

    An empty directory is as good as none. With ``force`` a result of the same kind may be
    replaced, and nothing else ever is.
    """
    empty = path.is_dir() and not any(path.iterdir())
    if not os.path.lexists(path) or empty:
        return
    article = "an" if kind[0] in "aeiou" else "a"
    if kind_of(path) != kind:
        raise StorageError(f"{path} exists and is not {article} {kind}; choose another place")
    if not force:
        raise StorageError(f"{path} exists; replace it with --force, or choose another place")
    with _kept_still(path, kind):
        pass


@contextmanager
def _kept_still(path: Path, kind: str) -> Iterator[None]:
    """Nobody writes to an index, and no service that can change it runs, while it is replaced.

    What a service tells its clients is kept would go with the old directory.
    """
    with ExitStack() as stack:
        if kind == "index" and kind_of(path) == kind:
            from hashcade.index._lock import writer_lock

            stack.enter_context(writer_lock(path))
        yield


@contextmanager
def new_directory(path: Path, kind: str, *, force: bool) -> Iterator[Path]:
    """Give an empty directory beside ``path``, which takes its place at the end.

    If anything goes wrong before that, it is removed, and what stood at ``path`` stays.
    """
    refuse_existing(path, kind, force=force)
    path = path.resolve() if path.is_symlink() else path.absolute()  # the link stays a link
    made = path.with_name(f".{path.name}.new-{os.getpid()}")
    old = path.with_name(f".{path.name}.old-{os.getpid()}")
    try:
        made.mkdir(parents=True)
        yield made
        with _kept_still(path, kind):
            if path.exists():
                path.rename(old)
            made.rename(path)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def refuse_existing_file(path: Path, *, force: bool) -> None:
    """Raise if a file cannot be written here; asked before the work begins, and again after."""
    if path.is_dir():
        raise StorageError(f"{path} is a directory; give the name of a file")
    if path.exists() and not force:
        raise StorageError(f"{path} exists; replace it with --force, or choose another place")


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[Path]:
    """Give a name beside ``path`` to write to; the file takes its place at the end."""
    refuse_existing_file(path, force=force)
    path = path.absolute()
    made = path.with_name(f".{path.stem}.new-{os.getpid()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield made
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
