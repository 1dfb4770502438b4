"""Files that are checked against a checksum while they are read, archives, whole new files."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
import numpy.typing as npt

from hashcade.errors import DataError

T = TypeVar("T")

_ARCHIVE_DAMAGE = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError)
_CHUNK = 1 << 20


def existing(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` as a :class:`~pathlib.Path` to something that exists."""
    place = Path(path).expanduser()
    if not place.exists():
        raise DataError(f"{place} does not exist")
    return place


def reason(error: BaseException) -> str:
    """Another library's error in one line: ``(OSError: ...)``."""
    return f"({type(error).__name__}: {' '.join(str(error).split())})"


def md5_of(path: Path) -> str:
    """Checksum of a file, as the official sites of data sets publish it."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, _md5).hexdigest()


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


class _HashingReader(io.RawIOBase):
    """A stream that takes the checksum of what is read through it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = _md5()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._stream.read(min(len(view), _CHUNK))  # a piece: no second copy of it all
        view[: len(data)] = data
        self.digest.update(data)
        return len(data)


def read_checked(
    stream: BinaryIO, reader: Callable[[BinaryIO], T], *, name: str, md5: str | None
) -> T:
    """Let ``reader`` read a stream, and compare the checksum of the whole stream with ``md5``.

    The file is read once. If both the reader and the checksum fail, the checksum is reported: it
    says that the file itself is to blame. ``md5=None`` checks nothing.
    """
    hashing = _HashingReader(stream)
    buffered = io.BufferedReader(hashing, _CHUNK)
    failure: DataError | None = None
    try:
        value = reader(cast("BinaryIO", buffered))
    except DataError as error:
        failure = error
    if md5 is not None:
        while buffered.read(_CHUNK):  # what the reader left over belongs to the file as well
            pass
        digest = hashing.digest.hexdigest()
        if digest != md5:
            raise DataError(
                f"{name}: md5 is {digest}, the official file has {md5}",
                hint="get the file again, or pass verify=False if it differs on purpose",
            )
    if failure is not None:
        raise failure
    return value


def write_npz(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays to an ``.npz`` file, which appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the regular files of a tar archive into a folder, which appears whole or not at all.

    Written out because ``extractall(filter=...)`` is missing before Python 3.11.4. Links and
    devices are left out; a path that leads out of the folder is an error.
    """
    temporary = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    try:
        # Read forward only: seeking back would decompress the archive again and again.
        with tarfile.open(archive, "r|*") as tar:
            for member in tar:
                place = PurePosixPath(member.name)
                if place.is_absolute() or ".." in place.parts:
                    raise DataError(f"{archive}: member {member.name} leads out of the archive")
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is not None:
                    target = temporary / place
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with stream, target.open("wb") as file:
                        shutil.copyfileobj(stream, file, _CHUNK)
        temporary.rename(folder)
    except _ARCHIVE_DAMAGE as error:
        if not folder.is_dir():  # or else another process was faster
            raise DataError(f"{archive}: cannot be unpacked {reason(error)}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
