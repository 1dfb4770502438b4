"""One writer at a time per directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hashcade.errors import IndexLockedError

LOCK_NAME = "lock"


@contextmanager
def writer_lock(directory: Path) -> Iterator[None]:
    """Hold the directory for writing, or raise ``IndexLockedError`` at once.

    The lock belongs to the open file, so it ends with the process, however that ends, and it
    keeps two threads of one process apart as well. The file itself stays where it is: to remove
    it would let a third writer lock a new one while a second waits for the old.
    """
    handle = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise IndexLockedError(f"{directory} is being written by another writer") from None
        yield
    finally:
        os.close(handle)
