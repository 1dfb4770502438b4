"""Files and directories that appear whole or not at all, and one writer at a time.

Every file that this package writes goes through here. A result is written under a temporary name
beside its destination, flushed to the disk, and then renamed. A directory that replaces another
one changes names with it in one step where the system can do that, so that there is never a
moment with nothing at the path.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hashcade.errors import IndexLockedError, StorageError

LOCK_NAME = "lock"

_CHUNK = 1 << 24
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


# -- files ---------------------------------------------------------------------------------------


def write_file(path: Path, parts: Iterable[Any]) -> None:
    """Write bytes-like parts to a new file, and return when they are on the disk."""
    with path.open("wb", buffering=0) as file:
        for part in parts:
            data = memoryview(part).cast("B")
            at = 0
            while at < data.nbytes:
                at += file.write(data[at : at + _CHUNK])
        os.fsync(file.fileno())


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
            path.parent.mkdir(parents=True, exist_ok=True)
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


# -- directories ---------------------------------------------------------------------------------


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Give an empty directory beside ``path``, which takes its place at the end.

    If anything goes wrong before that, it is removed, and what stood at ``path`` stays. Whether
    ``path`` may be replaced is for the caller to decide.
    """
    path = path.resolve() if path.is_symlink() else path.absolute()  # the link stays a link
    temporary = path.with_name(f".{path.name}.new-{os.getpid()}")
    with storage_errors(f"cannot write {path}"):
        if os.path.lexists(path) and not path.is_dir():
            raise StorageError(f"{path} exists and is not a directory", hint="choose another path")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            yield temporary
            sync_directory(temporary)
            if os.path.lexists(path):
                _exchange(temporary, path)
            else:
                temporary.rename(path)
            sync_directory(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _exchange(new: Path, old: Path) -> None:
    """Let two directories change names; afterwards ``new`` is the name of the old one."""
    if sys.platform == "linux":
        renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if renameat2 is not None:
            arguments = (_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old))
            if renameat2(*arguments, _RENAME_EXCHANGE) == 0:
                return
            code = ctypes.get_errno()
            if code not in (errno.EINVAL, errno.ENOSYS):  # a file system that cannot exchange
                raise OSError(code, os.strerror(code), str(old))
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
