"""Atomic writes of files and directories, and locks for a single writer.

Every file that this package writes goes through here. A result is written under a temporary name
next to its destination, flushed to disk, and then renamed. A directory replaces another one by an
atomic exchange of names where the system supports it, so that the path always exists; elsewhere
an interrupted replacement is undone at the next start. Only regular files are read, not links,
pipes or devices that an attacker put in their place.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from hashcade.errors import IndexLockedError, StorageError

if TYPE_CHECKING:
    import sqlite3

LOCK_NAME = "lock"

_CHUNK = 1 << 24
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # old kernels, network disks


# -- files ---------------------------------------------------------------------------------------


def write_file(path: Path, parts: Iterable[Any]) -> None:
    """Write bytes-like parts to a new file, and flush it to disk."""
    with path.open("wb", buffering=0) as file:
        for part in parts:
            write_all(file, part)
        os.fsync(file.fileno())


def write_all(file: FileIO, content: Any) -> None:
    """Write a bytes-like object to an unbuffered file, whose ``write`` may be partial."""
    data = memoryview(content).cast("B")
    offset = 0
    while offset < data.nbytes:
        offset += file.write(data[offset : offset + _CHUNK])


def replace_file(path: Path, content: bytes | str) -> None:
    """Replace a file atomically: a reader sees the old content or the new."""
    with new_file(path) as temporary:
        write_file(temporary, [content.encode() if isinstance(content, str) else content])


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary name next to ``path`` to write to; it is renamed to ``path`` at the end."""
    path = path.absolute()
    temporary = path.with_name(f".{path.stem}.new-{os.getpid()}{path.suffix}")
    with storage_errors(f"cannot write {path}"):
        if path.exists() and not path.is_file():  # a directory, or a device such as /dev/null
            raise StorageError(f"{path} exists and is not a file", hint="choose another path")
        try:
            _make_directories(path.parent)
            _remove_leftovers(path.parent, f".{path.stem}.new-", path.suffix)
            temporary.touch()
            with _claim(temporary):
                yield temporary
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def open_regular(path: str | os.PathLike[str], *, follow_links: bool = True) -> BinaryIO:
    """Open a file to read, or raise ``OSError`` at once if it is a pipe, a device or a directory.

    Opening a pipe blocks until there is a writer, and a device may have no end. With
    ``follow_links=False`` symbolic links are refused too.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    flags |= getattr(os, "O_BINARY", 0) | (0 if follow_links else getattr(os, "O_NOFOLLOW", 0))
    try:
        handle = os.open(path, flags)
    except OSError as error:
        if not follow_links and error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link, must be a regular file", str(path)) from None
        if error.errno == errno.ENXIO:  # a socket
            raise OSError(errno.EINVAL, "must be a regular file", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "must be a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_file(path: Path) -> bytes:
    """Read a regular file; an ``OSError`` becomes a ``StorageError``."""
    with storage_errors(f"cannot read {path}"), open_regular(path) as file:
        return file.read()


def distrust_database(db: sqlite3.Connection) -> None:
    """Harden a connection to an untrusted SQLite file: no functions in its schema, for example."""
    import sqlite3  # deferred: --help does not need it

    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    if sys.version_info >= (3, 12):
        db.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
    db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)


# -- directories ---------------------------------------------------------------------------------


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield an empty directory next to ``path``, which replaces ``path`` at the end.

    After an error it is removed, and ``path`` is unchanged. The caller decides whether ``path``
    may be replaced. Leftovers of killed processes are removed.
    """
    path = path.resolve() if path.is_symlink() else path.absolute()  # keep the link
    temporary = path.with_name(f".{path.name}.new-{os.getpid()}")
    with storage_errors(f"cannot write {path}"):
        restore_directory(path)
        if os.path.lexists(path) and not path.is_dir():
            raise StorageError(f"{path} exists and is not a directory", hint="choose another path")
        try:
            _make_directories(path.parent)
            _remove_leftovers(path.parent, f".{path.name}.new-")
            _remove_leftovers(path.parent, f".{path.name}.old-")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            with _claim(temporary):
                yield temporary
                put_directory(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def put_directory(new: Path, path: Path) -> None:
    """Move a directory to ``path``; what was at ``path`` is at ``new`` afterwards."""
    sync_directory(new)
    if os.path.lexists(path):
        _exchange(new, path)
    else:
        new.rename(path)
    sync_directory(path.parent)


def restore_directory(path: Path) -> None:
    """Restore a directory, if a process was killed while replacing it.

    Only needed where the system cannot exchange names atomically.
    """
    if os.path.lexists(path) or not path.parent.is_dir():
        return
    writers = _temporary_paths(path.parent, f".{path.name}.new-")
    if any(_is_claimed(writer) for writer in writers):
        return  # still running: it will finish
    for backup in _temporary_paths(path.parent, f".{path.name}.old-"):
        backup.rename(path)
        sync_directory(path.parent)
        return


def _make_directories(path: Path) -> None:
    """Create a directory and its parents, and flush them to disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)


def _temporary_paths(folder: Path, start: str, end: str = "") -> list[Path]:
    """Paths whose name has this start and end, and a process id between."""
    entries = sorted(os.listdir(folder))
    names = (name for name in entries if name.startswith(start) and name.endswith(end))
    return [folder / n for n in names if n[len(start) : len(n) - len(end)].isdecimal()]


def _remove_leftovers(folder: Path, start: str, end: str = "") -> None:
    """Remove temporary files of killed processes, but not of running ones."""
    for path in _temporary_paths(folder, start, end):
        if path.is_symlink() or _is_claimed(path):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _claim(path: Path) -> Iterator[None]:
    """Lock a temporary path while it is written; the lock ends with the process."""
    handle = None
    if sys.platform != "win32":
        with suppress(OSError):  # a file system without locks
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            _lock(handle)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _is_claimed(path: Path) -> bool:
    """Whether a running process writes to this path; True if unknown."""
    if sys.platform == "win32":
        return True
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        _lock(handle)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _exchange(new: Path, old: Path) -> None:
    """Exchange the names of two directories."""
    if sys.platform == "linux":
        renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if renameat2 is not None:
            arguments = (_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old))
            if renameat2(*arguments, _RENAME_EXCHANGE) == 0:
                return
            code = ctypes.get_errno()
            if code not in _CANNOT_EXCHANGE:
                raise OSError(code, os.strerror(code), str(old))
    # A process that is killed here leaves nothing at the path: see restore_directory.
    backup = old.with_name(f".{old.name}.old-{os.getpid()}")
    old.rename(backup)
    try:
        new.rename(old)
    except BaseException:
        backup.rename(old)
        raise
    backup.rename(new)


def sync_directory(directory: Path) -> None:
    """Flush the entries of a directory to disk. Windows has no such call, and needs none."""
    if sys.platform == "win32":
        return
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# -- errors and locks ----------------------------------------------------------------------------


@contextmanager
def storage_errors(message: str) -> Iterator[None]:
    """Turn an ``OSError`` into a ``StorageError`` that begins with ``message``."""
    try:
        yield
    except OSError as error:
        hint = None
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            hint = "free some space, or write elsewhere"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "choose a path that you may write to"
        raise StorageError(f"{message}: {error.strerror or error}", hint=hint) from error


@contextmanager
def writer_lock(directory: Path) -> Iterator[None]:
    """Hold the writer lock of a directory, or raise ``IndexLockedError`` at once."""
    handle = take_writer_lock(directory)
    try:
        yield
    finally:
        os.close(handle)


def take_writer_lock(directory: Path) -> int:
    """Take the writer lock of a directory; closing the returned handle releases it.

    The lock belongs to the open file, so it ends with the process, even a killed one, and also
    excludes other threads of this process. The lock file is never removed: otherwise one writer
    could lock a new file while another still holds the old one.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # never through a link
    handle = os.open(directory / LOCK_NAME, flags, 0o644)
    try:
        _lock(handle)
    except OSError as error:
        os.close(handle)
        if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            raise
        raise IndexLockedError(
            f"{directory} is held by another writer or by a service",
            hint="try again when it is done, or choose another path",
        ) from None
    return handle


def _lock(handle: int) -> None:
    """Lock an open file without waiting, or raise ``OSError``."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
