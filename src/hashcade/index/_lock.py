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
    handle = take_writer_lock(directory)
    try:
        yield
    finally:
        os.close(handle)


def take_writer_lock(directory: Path) -> int:
    """Take the lock for longer, as a service does; it is given back when the handle is closed."""
    handle = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise IndexLockedError(f"{directory} is held by another writer or by a service") from None
    except BaseException:
        os.close(handle)
        raise
    return handle
