"""Files in a folder or in an archive, read once and checked against a checksum on the way."""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from hashcade.errors import DataError

T = TypeVar("T")

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
_ARCHIVE_DAMAGE = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError)
_CHUNK = 1 << 20


def is_archive(path: Path) -> bool:
    """Whether the name of a file says that it is a tar archive, compressed or not."""
    return path.name.lower().endswith(ARCHIVES)


def existing(path: object) -> Path:
    """Return ``path`` as a :class:`~pathlib.Path` to something that is there."""
    found = Path(cast("Any", path)).expanduser()
    if not found.exists():
        raise DataError(f"{found} does not exist")
    return found


def reason(error: BaseException) -> str:
    """Say in one line what somebody else's error was: ``(OSError: ...)``."""
    return f"({type(error).__name__}: {' '.join(str(error).split())})"


def md5_of(path: Path) -> str:
    """Checksum of a file, as the official sites of data sets give it."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, _md5).hexdigest()


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


class _Digesting(io.RawIOBase):
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
    """Let ``reader`` read a stream, and compare the checksum of the whole of it with ``md5``.

    The file is read once. If both the reader and the checksum find fault, the checksum is what
    is reported: it says that the file itself is to blame. ``md5=None`` checks nothing.
    """
    digesting = _Digesting(stream)
    buffered = io.BufferedReader(digesting, _CHUNK)
    failure: DataError | None = None
    try:
        value = reader(cast("BinaryIO", buffered))
    except DataError as error:
        failure = error
    if md5 is not None:
        while buffered.read(_CHUNK):  # what the reader left over belongs to the file as well
            pass
        found = digesting.digest.hexdigest()
        if found != md5:
            raise DataError(
                f"{name}: md5 is {found}, the official file has {md5}; get the file again, "
                "or pass verify=False if it differs on purpose"
            )
    if failure is not None:
        raise failure
    return value


def read_members(
    path: Path,
    readers: Mapping[str, Callable[[BinaryIO, str], Any]],
    enough: Collection[Collection[str]],
) -> dict[str, Any]:
    """Read some files of a folder or of a tar archive, by their names.

    An archive is read from its beginning and only as far as needed, and nothing is unpacked: a
    member's path is looked at for its last part alone and never used as a path.

    Parameters
    ----------
    path
        The folder that has the files in it, or the archive.
    readers
        For each file name a function of the open file and its name for messages.
    enough
        Sets of file names; reading ends when one of the sets is complete.

    Returns
    -------
    dict
        What the readers returned, by file name: one of the sets at least, or else as much of
        it as there was.
    """
    found: dict[str, Any] = {}
    if path.is_dir():
        names = next((group for group in enough if _all_in(path, group)), ())
        for name in names:
            with (path / name).open("rb") as stream:
                found[name] = readers[name](stream, str(path / name))
        return found
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                content = archive.extractfile(member) if name in readers else None
                if content is not None:
                    with content:
                        member_stream = cast("BinaryIO", content)
                        found[name] = readers[name](member_stream, f"{path}: {member.name}")
                if any(found.keys() >= set(group) for group in enough):
                    break
    except _ARCHIVE_DAMAGE as error:
        raise DataError(
            f"{path}: not an archive that can be read, or damaged {reason(error)}"
        ) from None
    return found


def _all_in(folder: Path, names: Collection[str]) -> bool:
    return all((folder / name).is_file() for name in names)
