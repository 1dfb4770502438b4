"""Files and directories that appear whole or not at all, and one writer at a time.

Every file that this package writes goes through here. A result is written under a temporary name
beside its destination, flushed to the disk, and then renamed. A directory that replaces another
one changes names with it in one step where the system can do that, so that there is never a
moment with nothing at the path; elsewhere it is put back at the next start. What is read is a
regular file, and nothing that a stranger put in its place.
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
_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # old systems, and disks of nets


# -- files ---------------------------------------------------------------------------------------


def write_file(path: Path, parts: Iterable[Any]) -> None:
    """Write bytes-like parts to a new file, and return when they are on the disk."""
    with path.open("wb", buffering=0) as file:
        for part in parts:
            write_all(file, part)
        os.fsync(file.fileno())


def write_all(file: FileIO, part: Any) -> None:
    """Write all of a bytes-like part to a file without a buffer, which may take less at a time."""
    data = memoryview(part).cast("B")
    at = 0
    while at < data.nbytes:
        at += file.write(data[at : at + _CHUNK])


def replace_file(path: Path, content: bytes | str) -> None:
    """Write a file in place of an older one: a reader sees the old content or the new."""
    with new_file(path) as temporary:
        write_file(temporary, [content.encode() if isinstance(content, str) else content])


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Give a temporary name beside ``path`` to write to; the file is moved there at the end."""
    path = path.absolute()
    temporary = path.with_name(f".{path.stem}.new-{os.getpid()}{path.suffix}")
    with storage_errors(f"cannot write {path}"):
        if path.exists() and not path.is_file():  # a directory, or a device such as /dev/null
            raise StorageError(f"{path} exists and is not a file", hint="choose another path")
        try:
            _make_directories(path.parent)
            _remove_leftovers(path.parent, f".{path.stem}.new-", path.suffix)
            temporary.touch()
            with _claimed(temporary):
                yield temporary
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def open_regular(path: str | os.PathLike[str], *, follow_links: bool = True) -> BinaryIO:
    """Open a file to read, or raise ``OSError`` at once if it is a pipe, a device or a directory.

    Opening a pipe waits for somebody to write to it, and a device has no end. With
    ``follow_links=False`` a link is refused too, wherever it leads.
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
    """Read a regular file; what the system objects to is a ``StorageError``."""
    with storage_errors(f"cannot read {path}"), open_regular(path) as file:
        return file.read()


def distrust_database(db: sqlite3.Connection) -> None:
    """Let an SQLite file that anyone may have written do no harm: no functions in its schema."""
    import sqlite3  # not for a command that shows its help

    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    if sys.version_info >= (3, 12):
        db.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
    db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)


# -- directories ---------------------------------------------------------------------------------


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Give an empty directory beside ``path``, which takes its place at the end.

    If anything goes wrong before that, it is removed, and what stood at ``path`` stays. Whether
    ``path`` may be replaced is for the caller to decide. What a killed process left is removed.
    """
    path = path.resolve() if path.is_symlink() else path.absolute()  # the link stays a link
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
            with _claimed(temporary):
                yield temporary
                put_directory(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def put_directory(new: Path, path: Path) -> None:
    """Let a directory take the place of ``path``; what stood there has its name afterwards."""
    sync_directory(new)
    if os.path.lexists(path):
        _exchange(new, path)
    else:
        new.rename(path)
    sync_directory(path.parent)


def restore_directory(path: Path) -> None:
    """Put a directory back to its name, if a process was killed while it was being replaced.

    Only where the system cannot exchange names is there a moment without anything at the path.
    """
    if os.path.lexists(path) or not path.parent.is_dir():
        return
    writers = _beside(path.parent, f".{path.name}.new-")
    if any(_is_claimed(other) for other in writers):
        return  # not killed: it continues in a moment
    for aside in _beside(path.parent, f".{path.name}.old-"):
        aside.rename(path)
        sync_directory(path.parent)
        return


def _make_directories(path: Path) -> None:
    """Make a directory and those above it, and bring their names to the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)


def _beside(folder: Path, start: str, end: str = "") -> list[Path]:
    """What has such a name and the number of a process in it."""
    entries = sorted(os.listdir(folder))
    names = (name for name in entries if name.startswith(start) and name.endswith(end))
    return [folder / n for n in names if n[len(start) : len(n) - len(end)].isdecimal()]


def _remove_leftovers(folder: Path, start: str, end: str = "") -> None:
    """Remove what killed processes were writing, but not what a living one writes."""
    for path in _beside(folder, start, end):
        if path.is_symlink() or _is_claimed(path):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _claimed(path: Path) -> Iterator[None]:
    """Hold a lock on what is being written: it ends with this process, however that ends."""
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
    """Whether a living process writes this; if it cannot be found out, yes."""
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
    """Let two directories change names; afterwards ``new`` is the name of the old one."""
    if sys.platform == "linux":
        renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if renameat2 is not None:
            arguments = (_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old))
            if renameat2(*arguments, _RENAME_EXCHANGE) == 0:
                return
            code = ctypes.get_errno()
            if code not in _CANNOT_EXCHANGE:
                raise OSError(code, os.strerror(code), str(old))
    # A process that is killed in between leaves nothing at the path: see restore_directory.
    aside = old.with_name(f".{old.name}.old-{os.getpid()}")
    old.rename(aside)
    try:
        new.rename(old)
    except BaseException:
        aside.rename(old)
        raise
    aside.rename(new)


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory to the disk. Windows has no such call, and needs none."""
    if sys.platform == "win32":
        return
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# -- errors and locks ----------------------------------------------------------------------------


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn an ``OSError`` into a ``StorageError`` that begins with ``what``."""
    try:
        yield
    except OSError as error:
        hint = None
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            hint = "free some space, or write elsewhere"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "choose a path that you may write to"
        raise StorageError(f"{what}: {error.strerror or error}", hint=hint) from error


@contextmanager
def writer_lock(directory: Path) -> Iterator[None]:
    """Hold a directory for writing, or raise ``IndexLockedError`` at once."""
    handle = take_writer_lock(directory)
    try:
        yield
    finally:
        os.close(handle)


def take_writer_lock(directory: Path) -> int:
    """Take the lock of a directory; it is released when the returned handle is closed.

    The lock belongs to the open file, so it ends with the process, however that ends, and it
    keeps two threads of one process apart as well. The file itself is never removed: that would
    let a third writer lock a new one while a second waits for the old.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # made here, or nowhere
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
