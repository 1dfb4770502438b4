"""The journal: changes that are on disk before they are acknowledged, and not yet in the index.

::

    index/journal/
        lock                 held by the service as long as it runs, as is the lock of the index
        000000000007.log     frames, the oldest first; the file with the highest number grows

A file begins with a head: which generation of the index was on disk when the file was begun
(``base``), and which one was about to be saved (``following``), so that a journal is never applied
to an index that someone else put in its place. One frame holds all changes that were committed
together: a head with its own checksum, and the records with theirs. A frame is written and
flushed before the next begins. So when the machine stops in the middle, only the last frame can
be incomplete, and nobody was told that it was kept. Damage anywhere before is an error: something
that was acknowledged would be lost without a word.

Changes can be replayed any number of times: an item's state is decided by the last change that
names it. It therefore does no harm if the index has a part of them already.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hashcade.errors import CorruptIndexError, IndexLockedError, StorageError
from hashcade.index._lock import LOCK_NAME, take_writer_lock
from hashcade.index._manifest import MANIFEST_NAME
from hashcade.index._store import read_manifest
from hashcade.serve._records import Change, from_bytes, to_bytes

FOLDER = "journal"
_SUFFIX = ".log"
_MAGIC = b"hashcade journal 1\n\0"
_HEAD = struct.Struct("<20s16s32s32sI")  # magic, name of the file, base, following, CRC-32
_MARK = b"FRAM"
_RETRIES = 100
_FRAME = struct.Struct("<4sQQII")  # mark, sequence, length, CRC of the records, CRC of this


@dataclass(frozen=True)
class JournalFile:
    """What was read from one file."""

    path: Path
    generations: frozenset[str]
    frames: tuple[bytes, ...]
    sound_bytes: int  # up to the end of the last whole frame


def read_files(folder: Path) -> list[JournalFile]:
    """Read all files of a journal, in order; nothing is changed.

    Raises
    ------
    CorruptIndexError
        If something other than the end of the last file is damaged.
    """
    paths = sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else []
    files = []
    for path in paths:
        data = path.read_bytes()
        last = path is paths[-1]
        head = _read_head(data)
        if head is None:
            if last and len(data) <= _HEAD.size:  # stopped while it was begun: nothing is in it
                files.append(JournalFile(path, frozenset(), (), 0))
                continue
            raise CorruptIndexError(f"{path} is damaged: its head is wrong")
        name, generations = head
        frames, sound = _read_frames(data, name)
        # A file that is not the last was complete before the next was begun.
        if sound < len(data) and (not last or _frame_follows(data, sound + 1, name)):
            raise CorruptIndexError(f"{path} is damaged at byte {sound}: its checksum is wrong")
        files.append(JournalFile(path, generations, tuple(frames), sound))
    return files


def _read_head(data: bytes) -> tuple[bytes, frozenset[str]] | None:
    if len(data) < _HEAD.size:
        return None
    magic, name, base, following, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or crc != zlib.crc32(data[: _HEAD.size - 4]):
        return None
    texts = (part.rstrip(b"\0").decode("ascii") for part in (base, following))
    return name, frozenset(text for text in texts if text)


def _frame_head(data: bytes, at: int, name: bytes) -> tuple[int, int, int] | None:
    """Sequence, length and checksum of a frame, if there is a sound head at this place."""
    if data[at : at + 4] != _MARK or len(data) < at + _FRAME.size:
        return None
    _, sequence, length, crc, own = _FRAME.unpack_from(data, at)
    # The name of the file goes into the sum: records cannot be made to look like a head.
    if own != zlib.crc32(data[at : at + _FRAME.size - 4], zlib.crc32(name)):
        return None
    return sequence, length, crc


def _read_frames(data: bytes, name: bytes) -> tuple[list[bytes], int]:
    frames: list[bytes] = []
    at = _HEAD.size
    while at < len(data):
        head = _frame_head(data, at, name)
        if head is None or head[0] != len(frames):
            break
        end = at + _FRAME.size + head[1]
        payload = data[at + _FRAME.size : end]
        if len(payload) != head[1] or zlib.crc32(payload) != head[2]:
            break
        frames.append(payload)
        at = end
    return frames, at


def _frame_follows(data: bytes, at: int, name: bytes) -> bool:
    """Whether a sound head lies behind a damaged place: then it is not the end that is torn."""
    while (at := data.find(_MARK, at)) >= 0:
        if _frame_head(data, at, name) is not None:
            return True
        at += 1
    return False


class Journal:
    """The journal of an index, open for writing. Not for several threads at once.

    As long as it is open, nobody else can save into the directory of the index: what is in the
    journal belongs to the index that is there.
    """

    def __init__(self, index: Path) -> None:
        self.folder = index / FOLDER
        self._file = -1
        self._lock = -1
        self._index_lock = -1
        self.broken: str | None = None  # why nothing can be written any more
        try:
            if not self.folder.is_dir():
                self.folder.mkdir()
                _flush_folder(index)
            self._lock = os.open(
                self.folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._index_lock = take_writer_lock(index)
        except BlockingIOError:
            self.close()
            raise IndexLockedError(f"{index} is served by another process") from None
        except IndexLockedError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise StorageError(f"cannot write {self.folder}: {error.strerror}") from error

    def replay(self, generation: str) -> list[Change]:
        """Return all changes that the journal holds, for the index of this generation.

        A frame that was torn is cut off: nobody was told that it was kept, and a file that is no
        longer the last one must be whole.
        """
        files = read_files(self.folder)
        changes = changes_for(files, generation, self.folder)
        if files and files[-1].sound_bytes < files[-1].path.stat().st_size:
            with files[-1].path.open("rb+") as file:
                file.truncate(files[-1].sound_bytes)
                os.fsync(file.fileno())
        if files and files[-1].sound_bytes == 0:
            files[-1].path.unlink()
        return changes

    def begin(self, base: str, following: str = "") -> int:
        """Begin a new file and return its number. Files before it stay until they are dropped."""
        self._check_place()
        numbers = [int(path.stem) for path in self.folder.glob(f"*{_SUFFIX}")]
        number = max(numbers, default=0) + 1
        path = self.folder / f"{number:012d}{_SUFFIX}"
        name = os.urandom(16)
        head = _HEAD.pack(_MAGIC, name, base.encode(), following.encode(), 0)[:-4]
        handle = -1
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            _write_all(handle, head + struct.pack("<I", zlib.crc32(head)))
            os.fsync(handle)
            _flush_folder(self.folder)
        except OSError as error:
            if handle >= 0:
                os.close(handle)
                path.unlink(missing_ok=True)
            raise StorageError(f"cannot write {path}: {error.strerror}") from error
        if self._file >= 0:
            os.close(self._file)
        self._file, self._name, self._path, self.number = handle, name, path, number
        self._end, self._sequence = _HEAD.size, 0
        return number

    @property
    def size(self) -> int:
        """Bytes of frames in the file that grows."""
        return self._end - _HEAD.size

    def append(self, changes: Iterable[Change]) -> None:
        """Write changes as one frame; when this returns, they are on the disk.

        Raises
        ------
        StorageError
            They are not kept. If only the space was short, later ones may be.
        """
        if self.broken is not None:
            raise StorageError(f"no changes are taken: {self.broken}")
        payload = to_bytes(changes)
        head = _FRAME.pack(_MARK, self._sequence, len(payload), zlib.crc32(payload), 0)[:-4]
        head += struct.pack("<I", zlib.crc32(head, zlib.crc32(self._name)))
        try:
            _write_all(self._file, head + payload)
        except OSError as error:
            self._cut_back()
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from error
        try:
            os.fsync(self._file)
        except OSError as error:
            # After a failed flush nobody knows what is on the disk, and to ask again may lie.
            self.broken = f"flushing {self._path} failed: {error.strerror}"
            raise StorageError(f"no changes are taken: {self.broken}") from error
        # What is on a disk and cannot be found there is not kept.
        if not _stands_at(self._file, self._path):
            self.broken = f"{self._path} was moved or removed by somebody else"
            raise StorageError(f"no changes are taken: {self.broken}")
        self._end += len(head) + len(payload)
        self._sequence += 1

    def _check_place(self) -> None:
        """Refuse to write beside an index that somebody put in the place of ours."""
        if not _stands_at(self._lock, self.folder / LOCK_NAME):
            self.broken = f"{self.folder} was moved or removed by somebody else"
            raise StorageError(f"no changes are taken: {self.broken}")

    def _cut_back(self) -> None:
        """Remove half a frame, so that the next one follows the last whole one."""
        try:
            os.ftruncate(self._file, self._end)
            os.lseek(self._file, self._end, os.SEEK_SET)
        except OSError as error:
            self.broken = f"{self._path} cannot be cut back: {error.strerror}"

    def drop_before(self, number: int) -> None:
        """Remove the files before this one: the index on disk has what they say."""
        self._check_place()
        try:
            for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
                if int(path.stem) < number:
                    path.unlink(missing_ok=True)
            _flush_folder(self.folder)
        except OSError as error:
            raise StorageError(f"cannot clear {self.folder}: {error.strerror}") from error

    def close(self) -> None:
        """Give the files and the lock back."""
        for handle in (self._file, self._index_lock, self._lock):
            if handle >= 0:
                os.close(handle)
        self._file = self._index_lock = self._lock = -1


def changes_for(files: list[JournalFile], generation: str, folder: Path) -> list[Change]:
    """Return all changes in order, or refuse if they were made to another index."""
    known = frozenset[str]().union(*(file.generations for file in files))
    changes = [change for file in files for frame in file.frames for change in from_bytes(frame)]
    if changes and generation not in known:
        raise StorageError(
            f"{folder} has {len(changes)} changes to an index that is not there any more: it was"
            " replaced while they were not saved; remove the folder to drop them"
        )
    return changes


def waiting_changes(index: Path) -> list[Change]:
    """Read the journal of an index on disk, which may be served meanwhile; nothing is changed."""
    folder = index / FOLDER
    for _ in range(_RETRIES):
        try:
            generation = read_manifest(index).generation
            return changes_for(read_files(folder), generation, folder)
        except FileNotFoundError as error:  # saved and begun anew since the names were read
            if error.filename == str(index / MANIFEST_NAME):
                raise StorageError(f"{index} holds no index: there is no {MANIFEST_NAME}") from None
        except CorruptIndexError:
            raise
        except StorageError:  # of another index, unless it was saved since its name was read
            if read_manifest(index).generation == generation:
                raise
        except OSError as error:
            raise StorageError(f"cannot read {folder}: {error.strerror}") from error
    raise StorageError(f"{folder} changes faster than it can be read")


def _stands_at(handle: int, path: Path) -> bool:
    """Whether an open file is the one at this path."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while len(view) > 0:
        view = view[os.write(handle, view) :]


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
