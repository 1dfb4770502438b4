"""Payload a second time, in a file from which a search gathers it in one pass over memory.

::

    texts     JSON of the items with payload, in the order of their numbers; each is filled up
              with spaces to a multiple of 8 bytes, the last of which is a comma
    entries   int64[n, 3]: number of the item, the word of 8 bytes at which its text begins,
              a checksum of both number and text
    end       n, the words of all texts, and a checksum of these two

SQLite needs a walk through a tree of pages for each item, one wait for the memory after the other;
here all waits overlap. The database alone is the truth: it names the file that belongs to it, and
lists the items that changed since (``unfiled``). Those, and all if the file is missing, are read
from the database.
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

_END = struct.Struct("<qqq")
_FORMAT = b"hashcade-payload-1"
_CHUNK, _CHUNK_SIZE = 10_000, 1 << 22  # rows and characters that are written at a time, about
_MANY = 1 << 20  # words that are gathered in any case; more only if the file has so many
_OURS = re.compile("payload-([0-9a-f]{32})[.](bin|tmp)")

_SEED, _FACTOR, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93), np.uint64(32)
_OPEN, _NULL = (np.uint64(int.from_bytes(text, "little")) for text in (b"       [", b"null   ,"))
_CLOSE, _NOT_LAST = np.uint64(ord("]") << 56), np.uint64((1 << 56) - 1)

Words = npt.NDArray[np.uint64]


@kernel()
def _gather(numbers, entries, words):  # type: ignore[no-untyped-def]
    """Return the texts of items as a JSON list, which of them are not here, and a damaged one.

    Nothing of the file is trusted: what was read once is used, within bounds.
    """
    m, n = numbers.shape[0], entries.shape[0] - 1
    lacking = np.zeros(m, np.bool_)
    rows = np.empty((m, 3), np.int64)  # begin, end, checksum
    n_words = m + 1
    for i in range(m):
        number = numbers[i]
        rows[i, 0] = -1
        if number == -1:
            continue
        # Numbers ascend: the place is known but for the gaps between them.
        low = max(0, n - 1 - (entries[n - 1, 0] - number))
        high = min(n - 1, number - entries[0, 0])
        while low < high:
            middle = (low + high) // 2
            if entries[middle, 0] < number:
                low = middle + 1
            else:
                high = middle
        if low != high or entries[low, 0] != number:
            lacking[i] = True
            continue
        rows[i, 0], rows[i, 1], rows[i, 2] = entries[low, 1], entries[low + 1, 1], entries[low, 2]
        if not 0 <= rows[i, 0] < rows[i, 1] <= words.shape[0]:
            return words[:0].copy(), lacking, i
        n_words += rows[i, 1] - rows[i, 0] - 1
        if n_words > max(words.shape[0] + m, _MANY):  # items that repeat, or a forged file
            return words[:0].copy(), np.ones(m, np.bool_), -1
    seen = np.uint64(0)
    for i in range(m):  # read ahead
        for at in range(max(rows[i, 0], 0), rows[i, 1] if rows[i, 0] >= 0 else 0, 8):
            seen |= words[at]
    texts = np.empty(n_words, np.uint64)
    texts[0] = _OPEN
    to = 1
    for i in range(m):
        begin, size = rows[i, 0], rows[i, 1] - rows[i, 0]
        if begin < 0:
            texts[to] = _NULL
            to += 1
            continue
        check = np.uint64(numbers[i]) * _SEED ^ np.uint64(size)
        for at in range(size):
            word = words[begin + at]
            texts[to + at] = word
            check = (check ^ word) * _FACTOR
            check ^= check >> _SHIFT
        if np.int64(check) != rows[i, 2] or seen == 0:  # no text is all zeros
            return words[:0].copy(), lacking, i
        to += size
    texts[to - 1] = (texts[to - 1] & _NOT_LAST) | _CLOSE
    return texts, lacking, -1


@kernel()
def _checksums(numbers, ends, words):  # type: ignore[no-untyped-def]
    """Checksums of texts that follow each other: each word, and any order of them, counts."""
    checks, begin = np.empty(numbers.shape[0], np.int64), 0
    for i in range(numbers.shape[0]):
        check = np.uint64(numbers[i]) * _SEED ^ np.uint64(ends[i] - begin)
        for at in range(begin, ends[i]):
            check = (check ^ words[at]) * _FACTOR
            check ^= check >> _SHIFT
        checks[i] = np.int64(check)
        begin = ends[i]
    return checks


def warmup() -> None:
    """Compile the kernels, or load them from the cache."""
    numbers, words, ends = _packed([(0, "{}")])
    entries = np.array([[0, 0, _checksums(numbers, ends, words)[0]], [1, 1, 0]])
    for array in (entries, words):
        array.flags.writeable = False  # as those of a file are
    _gather(numbers, entries, words)


class PayloadFile:
    """Payload of the items of a table as of one commit.

    ``stale`` are numbers of items that changed since. It grows while catalogs of several commits
    share it: an item that one of them need not look up elsewhere does no harm.
    """

    def __init__(self, path: Path, stale: set[int]) -> None:
        self.path, self.stale = path, stale
        with open_regular(path, follow_links=False) as file:
            size = os.fstat(file.fileno()).st_size
            if size < _END.size or size % 8:
                raise CorruptIndexError(f"{path} is damaged: it has {size} bytes")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        n, n_words, _ = end = _END.unpack_from(data, size - _END.size)
        if end != _end(n, n_words) or n < 1 or n_words < 1 or size != 8 * (n_words + 3 * (n + 1)):
            raise CorruptIndexError(f"{path} is damaged: its end does not fit its {size} bytes")
        self._words: Words = np.frombuffer(data, np.uint64, n_words)
        self._entries: Int64s = np.frombuffer(data, np.int64, 3 * (n + 1), 8 * n_words)
        self._entries = self._entries.reshape(n + 1, 3)
        self._last = int(self._entries[n - 1, 0])
        self._any_replaced = any(number <= self._last for number in stale)

    def note_changed(self, numbers: list[int]) -> None:
        """Have items read from the database from now on."""
        self.stale.update(numbers)
        if not self._any_replaced:  # those after the last are new, and not here anyway
            self._any_replaced = any(number <= self._last for number in numbers)

    def __len__(self) -> int:
        return len(self._entries) - 1

    def read(self, numbers: Int64s) -> tuple[list[Any], Int64s]:
        """Payload of items, None for number -1; and the places of those that are not known here."""
        texts, places = self._texts(numbers)
        if len(texts) == 0:
            return [None] * len(numbers), places
        try:
            values: list[Any] = json.loads(texts.tobytes().decode())
        except (ValueError, RecursionError) as error:
            raise CorruptIndexError(f"{self.path}: a payload is damaged: {error}") from None
        if len(values) != len(numbers) or not _KINDS.issuperset(map(type, values)):
            raise CorruptIndexError(f"{self.path}: a payload is damaged: it is not an object")
        return values, places

    def _texts(self, numbers: Int64s) -> tuple[Words, Int64s]:
        if self._any_replaced:
            changed = map(self.stale.__contains__, numbers.tolist())
            numbers = np.where(np.fromiter(changed, bool, len(numbers)), -2, numbers)
        elif not numbers.flags.writeable:
            numbers = numbers.copy()  # what the kernel was compiled for
        if len(numbers) == 0:
            return self._words[:0], numbers
        texts, lacking, damaged = _gather(numbers, self._entries, self._words)
        if damaged >= 0:
            raise CorruptIndexError(
                f"{self.path} is damaged: the checksum of item {numbers[damaged]} is wrong"
            )
        return texts, np.flatnonzero(lacking)

    def problems(self, rows: Iterable[tuple[int, str]]) -> Iterator[str]:
        """Compare it with the payload of all items in the database."""
        n_rows, unchanged = 0, ((n, text) for n, text in rows if n not in self.stale)
        for part in _parts(unchanged):
            numbers, words, _ = _packed(part)
            n_rows += len(part)
            try:
                texts, places = self._texts(numbers)
            except CorruptIndexError as error:
                yield str(error)
                return
            # Beside the brackets, which are in the first word and in the last byte.
            same = len(texts) == len(words) + 1 and np.array_equal(texts[1:-1], words[:-1])
            if len(places) or not same or (texts[-1] ^ words[-1]) & _NOT_LAST:
                yield f"{self.path} does not have the payload of the database"
                return
        if n_rows + sum(n in self.stale for n in self._entries[:-1, 0].tolist()) != len(self):
            yield f"{self.path} has payload of items that are not in the database"


_KINDS = {dict, type(None)}


def file_path(directory: Path, generation: str) -> Path:
    """Where the payload of a table is that was written with this generation."""
    return directory / f"payload-{generation}.bin"


def is_payload_file(name: str) -> bool:
    """Whether a file of a table has this name, or had it while it was written."""
    return _OURS.fullmatch(name) is not None


def is_generation(name: object) -> bool:
    """Whether a file can be named by it: others may lead anywhere."""
    return isinstance(name, str) and is_payload_file(f"payload-{name}.bin")


def write_payload(directory: Path, generation: str, rows: Iterable[tuple[int, str]]) -> bool:
    """Write texts of items in ascending order of their numbers; False, and no file, for none."""
    path, parts = file_path(directory, generation), _parts(rows)
    temporary = path.with_suffix(".tmp")
    if (first := next(parts, None)) is None:
        return False

    def content() -> Iterator[Any]:
        n, n_words = 0, 0
        with TemporaryFile(dir=directory) as entries:  # they may be more than memory holds
            for part in chain([first], parts):
                numbers, words, ends = _packed(part)
                begins = n_words + np.concatenate(([0], ends[:-1]))
                checks = _checksums(numbers, ends, words)
                entries.write(np.stack([numbers, begins, checks], axis=1).tobytes())
                n, n_words = n + len(part), n_words + len(words)
                yield words
            entries.seek(0)
            while data := entries.read(_CHUNK * 24):
                yield data
        yield _END.pack(*_end(n, n_words))

    with storage_errors(f"cannot write {path}"):
        try:
            write_file(temporary, content())
            os.replace(temporary, path)
            sync_directory(directory)
        finally:
            temporary.unlink(missing_ok=True)
    return True


def remove_others(directory: Path, generation: str) -> None:
    """Remove what earlier generations and writers that were stopped have left."""
    for path in directory.iterdir():
        if is_payload_file(path.name) and path != file_path(directory, generation):
            with suppress(OSError):  # in use, where that counts
                path.unlink()


def _parts(rows: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    part, size = list[tuple[int, str]](), 0
    for row in rows:
        part.append(row)
        size += len(row[1])
        if len(part) >= _CHUNK or size >= _CHUNK_SIZE:
            yield part
            part, size = [], 0
    if part:
        yield part


def _packed(rows: list[tuple[int, str]]) -> tuple[Int64s, Words, Int64s]:
    """Numbers, texts as words, and where each text ends among them."""
    texts = [text.encode() for _, text in rows]
    filled = [text.ljust(len(text) | 7) + b"," for text in texts]
    numbers = np.fromiter((number for number, _ in rows), np.int64, len(rows))
    lengths = np.fromiter(map(len, filled), np.int64, len(rows))
    return numbers, np.frombuffer(b"".join(filled), np.uint64), np.cumsum(lengths) // 8


def _end(n: int, n_words: int) -> tuple[int, int, int]:
    return n, n_words, zlib.crc32(_FORMAT + struct.pack("<qq", n, n_words))
