"""Checks of stored segments, block by block: a block is the entries of one bucket.

The checksum of a block is the CRC-32 of its ids, item numbers, labels, vectors and codes, in this
order. It detects all burst errors of up to 32 bits, and others but for one in 2**32; but the
writer of an index can write matching checksums. So values are checked as well: those that a kernel
uses as indices, and those that its bounds rely on. The bounds of codes are compared with the
vectors: the first read of a block in a process reads its vectors too.
"""

from __future__ import annotations

import mmap as mmap_module
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hashcade.errors import CorruptIndexError
from hashcade.index.manifest import Record
from hashcade.index.prefetch import HAS_ADVICE
from hashcade.index.quantised import bounds_hold
from hashcade.index.segment import NO_LABEL, Int64s, NoCheck, View, as_float32, range_of_norms

Arrays = dict[str, npt.NDArray[Any]]

_CODE_ARRAYS = ("codes", "code_bounds")
BLOCK_ARRAYS = ("ids", "items", "labels", "vectors", *_CODE_ARRAYS)  # in the order of its checksum
_CHUNK = 65536  # entries that are checked at a time
_POLYNOMIAL = 0xEDB88320  # of CRC-32, with the lowest power in the highest bit
_TOLERANCE = 1e-5  # by which a length may differ from 1


def block_crc(arrays: Arrays, row: int) -> int:
    """Return the checksum of the block of bucket number ``row``."""
    start, stop = arrays["offsets"][row : row + 2].tolist()
    crc = 0
    for name in BLOCK_ARRAYS:
        if name in arrays:
            crc = zlib.crc32(arrays[name][start:stop].data, crc)
    return crc


class Limits(NamedTuple):
    """Limits of the values of a segment."""

    n_items: int
    next_id: int
    max_norm: float
    unit_length: bool


class StoredCheck(NoCheck):
    """Checks of a stored segment, each done once, when something is first read.

    ``checked`` : bool[n_buckets + 1] marks the blocks that passed, the last value all ids and item
    numbers, which are read for counting before it is known which blocks will be visited. Always
    the same array, because kernels have its address.
    """

    def __init__(
        self, path: Path, record: Record, raw: npt.NDArray[Any], mapped: mmap_module.mmap | None,
        arrays: Arrays, next_id: int, unit_length: bool,
    ) -> None:  # fmt: skip
        self.path = path
        self._record = record
        self._raw = raw
        self._mapped = mapped
        self._arrays = arrays
        self._limits = Limits(record["n_items"], next_id, record["max_norm"], unit_length)
        self._sections: set[str] = set()
        # With codes few vectors of a block are read: the kernel prefetches them.
        self.mapped = mapped is not None and "codes" in arrays and HAS_ADVICE
        self._read_ahead(False)
        self.checked: npt.NDArray[np.bool_] = np.zeros(len(arrays["blocks"]) + 1, dtype=np.bool_)

    def blocks(self, rows: Int64s | None = None) -> None:
        """Check blocks, all by default, that were not checked before."""
        rows = np.arange(len(self.checked) - 1) if rows is None else rows
        rows = rows[~self.checked[rows]]
        if len(rows):
            self._read_ahead(True)
            self._require([], rows.tolist())
            # Neighbouring blocks together: the overhead of a call exceeds the time of a block.
            for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
                start, stop = self._arrays["offsets"][[run[0], run[-1] + 1]].tolist()
                for problem in self._wrong_values(start, stop):
                    raise CorruptIndexError(problem)
            self.checked[rows] = True
            self._read_ahead(False)

    def ids(self) -> None:
        """Check all ids and item numbers: a kernel must not use one that is out of range."""
        if self.checked[-1]:
            return
        self.section("ids")
        self.section("items")
        for problem in wrong_numbers(self._arrays, 0, self._record["n_entries"], self._limits):
            raise CorruptIndexError(f"{self.path}: {problem}")
        self.checked[-1] = True

    def section(self, name: str) -> None:
        """Check a whole array, padding included, that was not checked before."""
        if name in self._arrays and name not in self._sections:
            self._require([name], [])
            if name == "labels":
                for problem in wrong_labels(self._arrays, 0, self._record["n_entries"]):
                    raise CorruptIndexError(f"{self.path}: {problem}")
            self._sections.add(name)

    def problems(self, names: Iterable[str], rows: Iterable[int]) -> Iterator[str]:
        """Check sections and blocks again, and yield a message for each damaged one."""
        size = self._record["bytes"]
        if self._mapped is not None and self._mapped.size() != size:
            # Reading beyond the end of a mapped file would kill the process.
            yield f"{self.path} has {self._mapped.size()} bytes, must have {size}"
            return
        for name in names:
            section = self._record["sections"][name]
            data = self._raw[section["offset"] : section["offset"] + section["bytes"]]
            if zlib.crc32(data.data) != section["crc32"]:
                yield f"{self.path}: section {name} is damaged: its checksum is wrong"
        for row in rows:
            if block_crc(self._arrays, row) != self._arrays["blocks"][row]:
                bucket = self._arrays["buckets"][row]
                yield f"{self.path}: bucket {bucket} is damaged: its checksum is wrong"

    def all_problems(self) -> list[str]:
        """Check everything again, and list all damage."""
        self._read_ahead(True)
        damage = list(self.problems(self._arrays, range(len(self.checked) - 1)))
        damage = damage or list(self._wrong_values(0, self._record["n_entries"]))
        self._read_ahead(False)
        return damage

    def _read_ahead(self, enabled: bool) -> None:
        """Turn read-ahead by the system on or off, see ``prefetch.py``."""
        if self.mapped and self._mapped is not None:
            self._mapped.madvise(mmap_module.MADV_NORMAL if enabled else mmap_module.MADV_RANDOM)

    def _wrong_values(self, start: int, stop: int) -> Iterator[str]:
        problems = wrong_values(self._arrays, start, stop, self._limits)
        return (f"{self.path}: {problem}" for problem in problems)

    def _require(self, names: Iterable[str], rows: Iterable[int]) -> None:
        for problem in self.problems(names, rows):
            raise CorruptIndexError(problem)


def wrong_values(arrays: Arrays, start: int, stop: int, limits: Limits) -> Iterator[str]:
    """Invalid values among the entries start..stop - 1."""
    yield from wrong_numbers(arrays, start, stop, limits)
    yield from wrong_labels(arrays, start, stop)
    max_norm = limits.max_norm
    for first in range(start, stop, _CHUNK):
        vectors = as_float32(arrays["vectors"][first : min(first + _CHUNK, stop)])
        low, high = range_of_norms(vectors, exact=limits.unit_length)
        if not high <= max_norm:  # also if it is NaN
            yield f"vectors must be finite, and not longer than max_norm={max_norm}"
            return
        if "codes" in arrays:
            codes, bounds = (arrays[name][first : first + len(vectors)] for name in _CODE_ARRAYS)
            if not bounds_hold(vectors, codes, bounds):
                yield "code_bounds must be those of the codes of the vectors"
                return
        if limits.unit_length and not (low > 1.0 - _TOLERANCE and high < 1.0 + _TOLERANCE):
            yield "vectors must have length 1"
            return


def wrong_numbers(arrays: Arrays, start: int, stop: int, limits: Limits) -> Iterator[str]:
    """Invalid ids and item numbers among the entries start..stop - 1."""
    ids, items = arrays["ids"][start:stop], arrays.get("items")
    if ids.min() < 0 or int(ids.max()) >= limits.next_id:
        yield f"ids must be in 0..{limits.next_id - 1}, before next_id"
    if items is None:
        return
    part = items[start:stop]
    if part.min() < 0 or part.max() >= limits.n_items:
        yield f"items must be in 0..{limits.n_items - 1}"


def wrong_labels(arrays: Arrays, start: int, stop: int) -> Iterator[str]:
    """Invalid labels among the entries start..stop - 1."""
    if "labels" in arrays and arrays["labels"][start:stop].min() < NO_LABEL:
        yield f"labels must be >= {NO_LABEL}"


def structure_problems(arrays: Arrays, n: int, dim: int, n_buckets: int) -> list[str]:
    """List problems of dtypes, shapes, buckets and offsets; other values are not read."""
    buckets, offsets = arrays["buckets"], arrays["offsets"]
    kinds = {
        "vectors": ("float32 or float16", (n, dim)),
        "codes": ("int8", (n, dim)),
        "code_bounds": ("float32", (n, 3)),
        "ids": ("int64", (n,)),
        "labels": ("int32 or int64", (n,)),
        "items": ("int32", (n,)),
        "buckets": ("int64", (len(buckets),)),
        "offsets": ("int64", (len(buckets) + 1,)),
        "blocks": ("uint32", (len(buckets),)),
    }
    problems = []
    for name, array in arrays.items():
        dtypes, shape = kinds[name]
        if array.dtype.name not in dtypes.split(" or ") or array.shape != shape:
            actual = f"{array.dtype}{list(array.shape)}"
            problems.append(f"{name} is {actual}, must be {dtypes}{list(shape)}")
    if problems:
        return problems
    if n == 0 or len(buckets) == 0:
        return ["a segment must not be empty"]
    if buckets[0] < 0 or buckets[-1] >= n_buckets or (buckets[1:] <= buckets[:-1]).any():
        problems.append(f"buckets must ascend within 0..{n_buckets - 1}")
    if offsets[0] != 0 or offsets[-1] != n or (offsets[1:] <= offsets[:-1]).any():
        problems.append(f"offsets must ascend from 0 to {n}")
    return problems


def content_problems(view: View) -> list[str]:
    """List problems of vectors, labels and item numbers of a segment of valid structure."""
    segment, problems = view.segment, []
    ids, items, n = segment.ids, segment.items, segment.n_entries
    for start in range(0, n, _CHUNK):
        if not np.isfinite(segment.vectors[start : start + _CHUNK]).all():
            problems.append(f"vectors has NaN or infinite values in entries {start}..")
            break
    if segment.labels is not None and segment.labels.min() < NO_LABEL:
        problems.append(f"labels must be >= {NO_LABEL}")
    n_live = len(np.unique(ids[view.live_entries()]))
    if n_live != view.n_items:
        problems.append(f"{n_live} items are there, must be {view.n_items}")
    if len(np.unique(ids)) != segment.n_items:  # removed entries included
        problems.append(f"{n} entries must be of {segment.n_items} items")
    if items is None or problems:
        return problems
    if not 0 <= items.min() <= items.max() < segment.n_items:
        return [f"items must be in 0..{segment.n_items - 1}"]
    # An item is the same in all its buckets, and once in each.
    first_entry = np.zeros(segment.n_items, dtype=np.int64)
    first_entry[items[::-1]] = np.arange(n)[::-1]
    for name, array in segment.arrays.items():
        if name in ("ids", "labels", "vectors") and not _rows_equal(array, first_entry[items]):
            problems.append(f"{name} must be the same in all entries of an item")
    occurs = np.zeros(segment.n_items, dtype=np.bool_)
    occurs[items] = True
    if len(np.unique(ids[first_entry[occurs]])) != occurs.sum():
        problems.append("an id belongs to several item numbers")
    pairs = np.lexsort((items, segment.rows_of(np.arange(n))))
    rows = segment.rows_of(pairs)
    if ((rows[1:] == rows[:-1]) & (items[pairs][1:] == items[pairs][:-1])).any():
        problems.append("an item is twice in one bucket")
    if not occurs.all():
        problems.append(f"items must be all of 0..{segment.n_items - 1}")
    return problems


def _rows_equal(array: npt.NDArray[Any], other_rows: Int64s) -> bool:
    """Whether every row equals the row with another number."""
    return all(
        np.array_equal(array[start : start + _CHUNK], array[other_rows[start : start + _CHUNK]])
        for start in range(0, len(array), _CHUNK)
    )


def crc32_combine(first: int, second: int, n_bytes: int) -> int:
    """Return the CRC-32 of two concatenated byte strings, the second of ``n_bytes``, from theirs.

    Appending n bytes is multiplication by x**(8 n), modulo the polynomial of the checksum.

    >>> import zlib
    >>> crc32_combine(zlib.crc32(b"hash"), zlib.crc32(b"cade"), 4) == zlib.crc32(b"hashcade")
    True
    """
    power, square, bits = 1 << 31, 1 << 30, 8 * n_bytes  # x**0, x**1
    while bits:
        if bits & 1:
            power = _multiply(power, square)
        square = _multiply(square, square)
        bits >>= 1
    return _multiply(power, first) ^ second


def _multiply(a: int, b: int) -> int:
    """The product of two polynomials over GF(2), modulo that of CRC-32."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product
