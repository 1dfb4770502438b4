"""The change log: changes that are on disk before they are acknowledged, and not yet in the index.

::

    index/changes/000000000007.log    frames, oldest first; the file with the highest number grows

A file begins with a head: which generation of the index was on disk when the file was begun
(``base``), and which one was about to be saved (``following``), so that a log is never applied to
an index that someone else put in its place. One frame holds all changes that were committed
together: a head with its own checksum, and the records with theirs. A frame is written and
flushed before the next begins. So when the machine stops in the middle, only the last frame can
be incomplete, and nobody was told that it is on disk. Damage anywhere before is an error: an
acknowledged change would be lost silently.

Changes can be replayed any number of times: the last change that names an item decides its state.
It therefore does no harm if the index has a part of them already.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hashcade._io import LOCK_NAME, storage_errors, sync_directory, take_writer_lock
from hashcade.errors import CorruptIndexError, StorageError
from hashcade.index import read_generation

FOLDER = "changes"
_PATTERN = "[0-9]" * 12 + ".log"
_MAGIC = b"hashcade changes 1\n\0"
_HEAD = struct.Struct("<20s16s32s32sI")  # magic, name of the file, base, following, CRC-32
_MARK = b"FRAM"
_FRAME = struct.Struct("<4sQQII")  # mark, sequence, length, CRC of the records, CRC of this
_RECORD = struct.Struct("<BBHIII")  # kind, flags, zero, items, buckets per item, dim
_ADD, _REMOVE = 1, 2
_WITH_LABELS = 1
_RETRIES = 100

T = TypeVar("T")
Position = tuple[str, tuple[tuple[str, int], ...]]  # generation; name and length of each file


# -- changes as bytes ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Add:
    """Items that were added, with the ids that they got."""

    ids: npt.NDArray[np.int64]  # (n,)
    bucket_ids: npt.NDArray[np.int64]  # (n, sparsity)
    vectors: npt.NDArray[np.float32]  # (n, dim)
    labels: npt.NDArray[np.int64] | None  # (n,) codes of the catalog


@dataclass(frozen=True, eq=False)
class Remove:
    """Items that were removed."""

    ids: npt.NDArray[np.int64]  # (n,)


Change = Add | Remove


def to_bytes(changes: Iterable[Change]) -> bytes:
    """Changes in their order; numbers are little-endian."""
    parts: list[bytes] = []
    for change in changes:
        n = len(change.ids)
        if isinstance(change, Remove):
            parts += [_RECORD.pack(_REMOVE, 0, 0, n, 0, 0), change.ids.astype("<i8").tobytes()]
            continue
        has_labels = 0 if change.labels is None else _WITH_LABELS
        sparsity, dim = change.bucket_ids.shape[1], change.vectors.shape[1]
        parts.append(_RECORD.pack(_ADD, has_labels, 0, n, sparsity, dim))
        parts += [values.astype("<i8").tobytes() for values in (change.ids, change.bucket_ids)]
        parts.append(change.vectors.astype("<f4").tobytes())
        if change.labels is not None:
            parts.append(change.labels.astype("<i8").tobytes())
    return b"".join(parts)


def from_bytes(data: bytes) -> Iterator[Change]:
    """Read what :func:`to_bytes` wrote. The checksum of the bytes was right."""
    at = 0

    def array(dtype: str, *shape: int) -> npt.NDArray[Any]:
        nonlocal at
        values = np.frombuffer(data, dtype, math.prod(shape), at).reshape(shape)
        at += values.nbytes
        return values.astype(values.dtype.newbyteorder("="))

    while at < len(data):
        try:
            kind, flags, _, n, sparsity, dim = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            ids = array("<i8", n)
            if kind == _REMOVE:
                yield Remove(ids)
                continue
            if kind != _ADD:
                raise ValueError(f"kind {kind} is unknown")
            buckets, vectors = array("<i8", n, sparsity), array("<f4", n, dim)
            labels = array("<i8", n) if flags & _WITH_LABELS else None
        except (ValueError, struct.error) as error:
            raise CorruptIndexError(f"a record of the change log cannot be read: {error}") from None
        yield Add(ids, buckets, vectors, labels)


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LogFile:
    """The content of one file."""

    path: Path
    generations: frozenset[str]
    frames: tuple[bytes, ...]
    sound_bytes: int  # up to the end of the last whole frame


def read_files(folder: Path) -> list[LogFile]:
    """Read all files of a log, in order. An error if more than the end of the last is damaged."""
    paths = sorted(folder.glob(_PATTERN)) if folder.is_dir() else []
    # A file that is not the last was complete before the next was begun.
    return [_read_file(path, may_be_torn=path is paths[-1]) for path in paths]


def _read_file(path: Path, may_be_torn: bool) -> LogFile:
    data = path.read_bytes()
    magic, name, base, following, crc = _HEAD.unpack(data[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    sound = len(data) >= _HEAD.size and crc == zlib.crc32(data[: _HEAD.size - 4])
    if magic != _MAGIC or not sound:
        if may_be_torn and len(data) <= _HEAD.size:  # stopped while it was begun: it is empty
            return LogFile(path, frozenset(), (), 0)
        raise CorruptIndexError(f"{path} is damaged: its head is wrong")
    frames: list[bytes] = []
    at = _HEAD.size
    while (head := _frame_head(data, at, name)) is not None:
        sequence, length, crc = head
        payload = data[at + _FRAME.size : at + _FRAME.size + length]
        if sequence != len(frames) or len(payload) != length or zlib.crc32(payload) != crc:
            break
        frames.append(payload)
        at += _FRAME.size + length
    if at < len(data):  # torn, unless a sound frame follows
        marks = re.finditer(_MARK, data[at + 1 :])
        follows = any(_frame_head(data, at + 1 + mark.start(), name) for mark in marks)
        if follows or not may_be_torn:
            raise CorruptIndexError(f"{path} is damaged at byte {at}: its checksum is wrong")
    generations = {text.rstrip(b"\0").decode("ascii") for text in (base, following)} - {""}
    return LogFile(path, frozenset(generations), tuple(frames), at)


def _frame_head(data: bytes, at: int, name: bytes) -> tuple[int, int, int] | None:
    """Sequence, length and checksum of a frame, if there is a sound head at this place."""
    head = data[at : at + _FRAME.size]
    if len(head) < _FRAME.size:
        return None
    mark, sequence, length, crc, head_crc = _FRAME.unpack(head)
    # The name of the file goes into the sum: records cannot be made to look like a head.
    if mark != _MARK or head_crc != zlib.crc32(head[:-4], zlib.crc32(name)):
        return None
    return sequence, length, crc


def changes_for(files: list[LogFile], generation: str, folder: Path) -> list[Change]:
    """All changes in order; an error if they were made to another index."""
    changes = [change for file in files for frame in file.frames for change in from_bytes(frame)]
    if changes and not any(generation in file.generations for file in files):
        raise StorageError(
            f"{folder} has {len(changes)} changes to an index that is not there any more: it was"
            " replaced while they were not saved",
            hint=f"put the old index back, or remove {folder} to drop them",
        )
    return changes


def read_changes(index: Path, load: Callable[[], T]) -> tuple[list[Change], Position, T]:
    """Read the log of an index directory, and ``load`` what it belongs to; nothing is changed.

    The directory may be served meanwhile: all that is returned is of one generation.
    """
    folder = index / FOLDER
    for _ in range(_RETRIES):
        generation = read_generation(index)
        try:
            files = read_files(folder)
            changes, loaded = changes_for(files, generation, folder), load()
            if read_generation(index) == generation:
                return changes, position(generation, files), loaded
        except FileNotFoundError:  # saved, and a new log begun, since the names were read
            continue
        except StorageError as error:  # damaged, or of another index unless it was saved since
            if isinstance(error, CorruptIndexError) or read_generation(index) == generation:
                raise
        except OSError as error:
            raise StorageError(f"cannot read {folder}: {error.strerror}") from error
    raise StorageError(f"{folder} changes faster than it can be read")


def position(generation: str, files: list[LogFile]) -> Position:
    """What identifies a state of index and log on disk."""
    return generation, tuple((file.path.name, file.sound_bytes) for file in files if file.frames)


# -- writing ---------------------------------------------------------------------------------------


class ChangeLog:
    """The log of an index directory, open for writing. Not for concurrent use.

    As long as it is open it holds the writer lock of the directory: nobody else can save there.
    """

    def __init__(self, index: Path) -> None:
        self.index, self.folder = index, index / FOLDER
        self.broken: str | None = None  # why nothing can be written any more
        self._file, self._path = -1, self.folder
        with storage_errors(f"cannot write {index}"):
            self._lock = take_writer_lock(index)

    def replay(self, generation: str) -> list[Change]:
        """All changes in the log, for the index of this generation.

        A torn frame is cut off: it was never acknowledged, and a file that is no longer the last
        one must be whole.
        """
        files = read_files(self.folder)
        changes = changes_for(files, generation, self.folder)
        for last in files[-1:]:
            if last.sound_bytes == 0:
                last.path.unlink()
                continue
            with last.path.open("rb+") as file:
                file.truncate(last.sound_bytes)
                os.fsync(file.fileno())
        return changes

    def begin(self, base: str, following: str = "") -> int:
        """Begin a new file and return its number. Files before it stay until they are dropped."""
        self._check_place()
        number = max((int(path.stem) for path in self.folder.glob(_PATTERN)), default=0) + 1
        path = self.folder / f"{number:012d}.log"
        name = os.urandom(16)
        head = _HEAD.pack(_MAGIC, name, base.encode(), following.encode(), 0)[:-4]
        with storage_errors(f"cannot write {path}"):
            if not self.folder.is_dir():
                self.folder.mkdir()
                sync_directory(self.index)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            handle = os.open(path, flags, 0o644)
            try:
                _write_all(handle, head + struct.pack("<I", zlib.crc32(head)))
                os.fsync(handle)
                sync_directory(self.folder)
            except OSError:
                os.close(handle)
                path.unlink(missing_ok=True)
                raise
        if self._file >= 0:
            os.close(self._file)
        self._file, self._name, self._path = handle, name, path
        self._end, self._sequence = _HEAD.size, 0
        return number

    @property
    def size(self) -> int:
        """Bytes of frames in the file that grows."""
        return self._end - _HEAD.size

    def append(self, changes: Iterable[Change]) -> None:
        """Write changes as one frame; when this returns, they are on disk.

        After a ``StorageError`` they are not; if only the space was short, later ones may be.
        """
        if self.broken is not None:
            raise StorageError(f"no changes are taken: {self.broken}")
        payload = to_bytes(changes)
        head = _FRAME.pack(_MARK, self._sequence, len(payload), zlib.crc32(payload), 0)[:-4]
        head += struct.pack("<I", zlib.crc32(head, zlib.crc32(self._name)))
        try:
            _write_all(self._file, head + payload)
        except OSError as error:
            try:  # without the half frame the next one follows the last whole one
                os.ftruncate(self._file, self._end)
                os.lseek(self._file, self._end, os.SEEK_SET)
            except OSError as second:
                self.broken = f"{self._path} cannot be cut back: {second.strerror}"
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from error
        try:
            os.fsync(self._file)
        except OSError as error:
            # The on-disk state is unknown, and a retry may falsely report success.
            self.broken = f"flushing {self._path} failed: {error.strerror}"
            raise StorageError(
                f"whether the change is on disk is unknown: {self.broken}",
                hint="restart the service, and look whether it is there",
            ) from error
        self._check_place()  # what is on a disk and cannot be reached there is lost
        self._end += len(head) + len(payload)
        self._sequence += 1

    def _check_place(self) -> None:
        """Refuse to write beside an index that somebody put in the place of this one."""
        for handle, path in ((self._lock, self.index / LOCK_NAME), (self._file, self._path)):
            with contextlib.suppress(OSError):
                if handle < 0 or os.path.samestat(os.fstat(handle), path.stat()):
                    continue
            place = self.index if path.name == LOCK_NAME else path
            self.broken = f"{place} was moved or removed by another program"
            raise StorageError(f"no changes are taken: {self.broken}")

    def drop_before(self, number: int) -> None:
        """Remove the files before this one: the index on disk has their changes."""
        self._check_place()
        with storage_errors(f"cannot clear {self.folder}"):
            for path in sorted(self.folder.glob(_PATTERN)):
                if int(path.stem) < number:
                    path.unlink(missing_ok=True)
            sync_directory(self.folder)

    def close(self) -> None:
        """Close the file and release the lock."""
        for handle in (self._file, self._lock):
            if handle >= 0:
                os.close(handle)
        self._file = self._lock = -1


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while len(view) > 0:
        view = view[os.write(handle, view) :]
