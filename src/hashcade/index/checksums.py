"""Checksums: of each block (the entries of one bucket), which is read and checked by itself.

The checksum of a block is the CRC-32 of its ids, item numbers, labels and vectors, one after the
other. It finds all damage of up to 32 bits in a row, and any other but one in 2**32.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.errors import CorruptIndexError
from hashcade.index.segment import NO_LABEL, Int64s, NoCheck, View

Arrays = dict[str, npt.NDArray[Any]]
Record = dict[str, Any]  # of a segment in the manifest, see ``storage.py``


def block_crc(arrays: Arrays, row: int) -> int:
    """Return the checksum of the block of bucket number ``row``."""
    start, stop = arrays["offsets"][row : row + 2].tolist()
    crc = 0
    for name in ("ids", "items", "labels", "vectors"):
        if name in arrays:
            crc = zlib.crc32(arrays[name][start:stop].data, crc)
    return crc


class StoredCheck(NoCheck):
    """Checks of a stored segment, each made once, when something is first read.

    ``checked`` : bool[n_buckets + 1] are the blocks that are known to be right, the last one for
    ids and item numbers as a whole, which counting reads before it is known which blocks will be
    visited. Always the same array, because kernels know its address.
    """

    def __init__(
        self, path: Path, record: Record, raw: npt.NDArray[Any], mapped: mmap | None, arrays: Arrays
    ) -> None:
        self.path = path
        self._record = record
        self._raw = raw
        self._mapped = mapped
        self._arrays = arrays
        self._sections: set[str] = set()
        self.checked: npt.NDArray[np.bool_] = np.zeros(len(arrays["blocks"]) + 1, dtype=np.bool_)

    def blocks(self, rows: Int64s | None = None) -> None:
        """Check blocks, all by default, that were not checked before."""
        rows = np.arange(len(self.checked) - 1) if rows is None else rows
        for row in rows[~self.checked[rows]].tolist():
            self._require([], [row])
            self.checked[row] = True

    def ids(self) -> None:
        """Check ids and item numbers as a whole: a kernel must not use a number out of range."""
        if self.checked[-1]:
            return
        self.section("ids")
        self.section("items")
        items, n_items = self._arrays.get("items"), self._record["n_items"]
        if items is not None and (items.min() < 0 or items.max() >= n_items):
            raise CorruptIndexError(f"{self.path}: items must be in 0..{n_items - 1}")
        self.checked[-1] = True

    def section(self, name: str) -> None:
        """Check a whole array, padding included, that was not checked before."""
        if name in self._arrays and name not in self._sections:
            self._require([name], [])
            self._sections.add(name)

    def problems(self, names: Iterable[str], rows: Iterable[int]) -> Iterator[str]:
        """Check sections and blocks again, and name those that are damaged."""
        size = self._record["bytes"]
        if self._mapped is not None and self._mapped.size() != size:
            # Reading beyond the end of a mapped file would end the process.
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
        """Check everything again, and name all that is damaged."""
        return list(self.problems(self._arrays, range(len(self.checked) - 1)))

    def _require(self, names: Iterable[str], rows: Iterable[int]) -> None:
        for problem in self.problems(names, rows):
            raise CorruptIndexError(problem)


def structure_problems(arrays: Arrays, n: int, dim: int, n_buckets: int) -> list[str]:
    """List what is wrong with the arrays that tell where things are; the others are not read."""
    buckets, offsets = arrays["buckets"], arrays["offsets"]
    kinds = {
        "vectors": ("float32", (n, dim)),
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
    """List what is wrong with vectors, labels and numbers, of a segment of sound structure."""
    segment, problems = view.segment, []
    for at in range(0, segment.n_entries, 65536):
        if not np.isfinite(segment.vectors[at : at + 65536]).all():
            problems.append(f"vectors has NaN or infinite values in entries {at}..")
            break
    if segment.labels is not None and segment.labels.min() < NO_LABEL:
        problems.append(f"labels must be >= {NO_LABEL}")
    n_live = len(np.unique(segment.ids[view.live_entries()]))
    if n_live != view.n_items:
        problems.append(f"{n_live} items are there, must be {view.n_items}")
    return problems
