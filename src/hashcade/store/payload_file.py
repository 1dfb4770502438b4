"""A copy of the payload in a memory-mapped file, from which searches read it in one pass.

::

    texts     JSON of the items with payload, in the order of their numbers; each is padded with
              spaces to a multiple of 8 bytes, the last of which is a comma
    entries   int64[n, 3]: number of the item, offset of its text in words of 8 bytes, and a
              checksum of number and text
    footer    n, the number of words of all texts, and a checksum of these two

SQLite walks a tree of pages for each item, one cache miss after the other; here the misses overlap.
The database is authoritative: it names the file that belongs to it, and lists the items that
changed since (``unfiled``). Those are read from the database, and all items if the file is missing.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._io import open_regular, storage_errors, sync_directory, write_file
from hashcade._kernels import kernel
from hashcade.errors import CorruptIndexError
from hashcade.store.ids import Int64s

_FOOTER = struct.Struct("<qqq")
_FORMAT = b"hashcade-payload-1"
_CHUNK, _CHUNK_SIZE = 10_000, 1 << 22  # rows and characters per write, roughly
_MIN_LIMIT = 1 << 20  # words that may be read even from a smaller file
_FILE_NAME = re.compile("payload-([0-9a-f]{32})[.](bin|tmp)")

_SEED, _FACTOR, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93), np.uint64(32)
_OPEN, _NULL = (np.uint64(int.from_bytes(text, "little")) for text in (b"       [", b"null   ,"))
_CLOSE, _LAST_BYTE_CLEAR = np.uint64(ord("]") << 56), np.uint64((1 << 56) - 1)

Words = npt.NDArray[np.uint64]


@kernel()
def _gather(numbers, entries, words):  # type: ignore[no-untyped-def]
    """Return the texts of items as a JSON list, which items are missing, and a damaged one or -1.

    The file is not trusted: offsets are read once, and checked against its bounds.
    """
    m, n = numbers.shape[0], entries.shape[0] - 1
    missing = np.zeros(m, np.bool_)
    rows = np.empty((m, 3), np.int64)  # start, stop, checksum
    n_words = m + 1
    for i in range(m):
        number = numbers[i]
        rows[i, 0] = -1
        if number == -1:
            continue
        # Numbers ascend: only their gaps leave the position open.
        low = max(0, n - 1 - (entries[n - 1, 0] - number))
        high = min(n - 1, number - entries[0, 0])
        while low < high:
            middle = (low + high) // 2
            if entries[middle, 0] < number:
                low = middle + 1
            else:
                high = middle
        if low != high or entries[low, 0] != number:
            missing[i] = True
            continue
        rows[i, 0], rows[i, 1], rows[i, 2] = entries[low, 1], entries[low + 1, 1], entries[low, 2]
        if not 0 <= rows[i, 0] < rows[i, 1] <= words.shape[0]:
            return words[:0].copy(), missing, i
        n_words += rows[i, 1] - rows[i, 0] - 1
        if n_words > max(words.shape[0] + m, _MIN_LIMIT):  # repeated items, or a forged file
            return words[:0].copy(), np.ones(m, np.bool_), -1
    touched = np.uint64(0)
    for i in range(m):  # prefetch
        for offset in range(max(rows[i, 0], 0), rows[i, 1] if rows[i, 0] >= 0 else 0, 8):
            touched |= words[offset]
    texts = np.empty(n_words, np.uint64)
    texts[0] = _OPEN
    end = 1
    for i in range(m):
        start, size = rows[i, 0], rows[i, 1] - rows[i, 0]
        if start < 0:
            texts[end] = _NULL
            end += 1
            continue
        checksum = np.uint64(numbers[i]) * _SEED ^ np.uint64(size)
        for offset in range(size):
            word = words[start + offset]
            texts[end + offset] = word
            checksum = (checksum ^ word) * _FACTOR
            checksum ^= checksum >> _SHIFT
        if np.int64(checksum) != rows[i, 2] or touched == 0:  # no text is all zeros
            return words[:0].copy(), missing, i
        end += size
    texts[end - 1] = (texts[end - 1] & _LAST_BYTE_CLEAR) | _CLOSE
    return texts, missing, -1


@kernel()
def _checksums(numbers, ends, words):  # type: ignore[no-untyped-def]
    """Checksums of consecutive texts, sensitive to each word and to their order."""
    checksums, start = np.empty(numbers.shape[0], np.int64), 0
    for i in range(numbers.shape[0]):
        checksum = np.uint64(numbers[i]) * _SEED ^ np.uint64(ends[i] - start)
        for offset in range(start, ends[i]):
            checksum = (checksum ^ words[offset]) * _FACTOR
            checksum ^= checksum >> _SHIFT
        checksums[i] = np.int64(checksum)
        start = ends[i]
    return checksums


def warmup() -> None:
    """Compile the kernels, or load them from the cache."""
    numbers, words, ends = _pack([(0, "{}")])
    entries = np.array([[0, 0, _checksums(numbers, ends, words)[0]], [1, 1, 0]])
    for array in (entries, words):
        array.flags.writeable = False  # like a memory-mapped file
    _gather(numbers, entries, words)


class PayloadFile:
    """Payload of the items of a table at one commit.

    ``stale`` are the numbers of items that changed since. Catalogs of several commits share it, so
    it may list items that are not stale for some: these are only read from the database as well.
    """

    def __init__(self, path: Path, stale: set[int]) -> None:
        self.path, self.stale = path, stale
        with open_regular(path, follow_links=False) as file:
            size = os.fstat(file.fileno()).st_size
            if size < _FOOTER.size or size % 8:
                raise CorruptIndexError(f"{path} is damaged: it has {size} bytes")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        n, n_words, _ = footer = _FOOTER.unpack_from(data, size - _FOOTER.size)
        if (
            footer != _footer(n, n_words)
            or n < 1
            or n_words < 1
            or size != 8 * (n_words + 3 * (n + 1))
        ):
            raise CorruptIndexError(f"{path} is damaged: its end does not fit its {size} bytes")
        self._words: Words = np.frombuffer(data, np.uint64, n_words)
        self._entries: Int64s = np.frombuffer(data, np.int64, 3 * (n + 1), 8 * n_words)
        self._entries = self._entries.reshape(n + 1, 3)
        self._last = int(self._entries[n - 1, 0])
        self._any_stale = any(number <= self._last for number in stale)

    def mark_stale(self, numbers: list[int]) -> None:
        """Have items read from the database from now on."""
        self.stale.update(numbers)
        if not self._any_stale:  # numbers beyond the last one are not in the file
            self._any_stale = any(number <= self._last for number in numbers)

    def __len__(self) -> int:
        return len(self._entries) - 1

    def read(self, numbers: Int64s) -> tuple[list[Any], Int64s]:
        """Payload of items, None for number -1; and the positions of those that are missing."""
        texts, missing = self._texts(numbers)
        if len(texts) == 0:
            return [None] * len(numbers), missing
        try:
            values: list[Any] = json.loads(texts.tobytes().decode())
        except (ValueError, RecursionError) as error:
            raise CorruptIndexError(f"{self.path}: a payload is damaged: {error}") from None
        if len(values) != len(numbers) or not _PAYLOAD_TYPES.issuperset(map(type, values)):
            raise CorruptIndexError(f"{self.path}: a payload is damaged: it is not an object")
        return values, missing

    def _texts(self, numbers: Int64s) -> tuple[Words, Int64s]:
        if self._any_stale:
            changed = map(self.stale.__contains__, numbers.tolist())
            numbers = np.where(np.fromiter(changed, bool, len(numbers)), -2, numbers)
        elif not numbers.flags.writeable:
            numbers = numbers.copy()  # the type that the kernel was compiled for
        if len(numbers) == 0:
            return self._words[:0], numbers
        texts, missing, damaged = _gather(numbers, self._entries, self._words)
        if damaged >= 0:
            raise CorruptIndexError(
                f"{self.path} is damaged: the checksum of item {numbers[damaged]} is wrong"
            )
        return texts, np.flatnonzero(missing)

    def problems(self, rows: Iterable[tuple[int, str]]) -> Iterator[str]:
        """Compare the file with the payload of all items in the database."""
        n_rows, unchanged = 0, ((n, text) for n, text in rows if n not in self.stale)
        for chunk in _chunks(unchanged):
            numbers, words, _ = _pack(chunk)
            n_rows += len(chunk)
            try:
                texts, missing = self._texts(numbers)
            except CorruptIndexError as error:
                yield str(error)
                return
            # All but the brackets, which are in the first word and in the last byte.
            is_same = len(texts) == len(words) + 1 and np.array_equal(texts[1:-1], words[:-1])
            if len(missing) or not is_same or (texts[-1] ^ words[-1]) & _LAST_BYTE_CLEAR:
                yield f"{self.path} does not have the payload of the database"
                return
        if n_rows + sum(n in self.stale for n in self._entries[:-1, 0].tolist()) != len(self):
            yield f"{self.path} has payload of items that are not in the database"


_PAYLOAD_TYPES = {dict, type(None)}


def file_path(directory: Path, generation: str) -> Path:
    """Path of the payload file of this generation."""
    return directory / f"payload-{generation}.bin"


def is_payload_file(name: str) -> bool:
    """Whether this is the name of a payload file, or of one being written."""
    return _FILE_NAME.fullmatch(name) is not None


def is_generation(name: object) -> bool:
    """Whether it is a valid generation: other names might be paths to anywhere."""
    return isinstance(name, str) and is_payload_file(f"payload-{name}.bin")


def write_payload(directory: Path, generation: str, rows: Iterable[tuple[int, str]]) -> bool:
    """Write the payload of items, by ascending number; without any, return False and write none."""
    path, chunks = file_path(directory, generation), _chunks(rows)
    temporary = path.with_suffix(".tmp")
    if (first := next(chunks, None)) is None:
        return False

    def content() -> Iterator[Any]:
        n, n_words = 0, 0
        with TemporaryFile(dir=directory) as entries:  # may not fit into memory
            for chunk in chain([first], chunks):
                numbers, words, ends = _pack(chunk)
                starts = n_words + np.concatenate(([0], ends[:-1]))
                checksums = _checksums(numbers, ends, words)
                entries.write(np.stack([numbers, starts, checksums], axis=1).tobytes())
                n, n_words = n + len(chunk), n_words + len(words)
                yield words
            entries.seek(0)
            while data := entries.read(_CHUNK * 24):
                yield data
        yield _FOOTER.pack(*_footer(n, n_words))

    with storage_errors(f"cannot write {path}"):
        try:
            write_file(temporary, content())
            os.replace(temporary, path)
            sync_directory(directory)
        finally:
            temporary.unlink(missing_ok=True)
    return True


def remove_stale_files(directory: Path, generation: str) -> None:
    """Remove files of earlier generations, and of writers that were interrupted."""
    for path in directory.iterdir():
        if is_payload_file(path.name) and path != file_path(directory, generation):
            with suppress(OSError):  # in use (Windows)
                path.unlink()


def _chunks(rows: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    chunk, size = list[tuple[int, str]](), 0
    for row in rows:
        chunk.append(row)
        size += len(row[1])
        if len(chunk) >= _CHUNK or size >= _CHUNK_SIZE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _pack(rows: list[tuple[int, str]]) -> tuple[Int64s, Words, Int64s]:
    """Numbers, texts as 8-byte words, and the end of each text in these."""
    texts = [text.encode() for _, text in rows]
    padded = [text.ljust(len(text) | 7) + b"," for text in texts]
    numbers = np.fromiter((number for number, _ in rows), np.int64, len(rows))
    lengths = np.fromiter(map(len, padded), np.int64, len(rows))
    return numbers, np.frombuffer(b"".join(padded), np.uint64), np.cumsum(lengths) // 8


def _footer(n: int, n_words: int) -> tuple[int, int, int]:
    return n, n_words, zlib.crc32(_FORMAT + struct.pack("<qq", n, n_words))
