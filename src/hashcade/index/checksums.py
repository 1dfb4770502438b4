"""Checksums: of each block (the entries of one bucket), which is read and checked by itself.

The checksum of a block is the CRC-32 of its ids, item numbers, labels and vectors, one after the
other. It finds every damage of up to 32 bits in a row for certain, and any other but one in four
thousand million; it comes with Python, and runs at several gigabytes a second.
"""

from __future__ import annotations

import mmap as mmap_module
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.errors import CorruptIndexError
from hashcade.index.manifest import SegmentRecord
from hashcade.index.segment import NO_LABEL, BlockCheck, Int64s, Segment, View


def as_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return the bytes of an array without copying them; it must be contiguous."""
    view: Any = array.data
    return memoryview(view).cast("B") if array.size else memoryview(b"")


def block_crc(segment: Segment, row: int) -> int:
    """Return the checksum of the block of bucket number ``row``."""
    start, stop = int(segment.offsets[row]), int(segment.offsets[row + 1])
    crc = 0
    for array in (segment.ids, segment.items, segment.labels, segment.vectors):
        if array is not None:
            crc = zlib.crc32(as_bytes(array[start:stop]), crc)
    return crc


def block_crcs(segment: Segment) -> npt.NDArray[np.uint32]:
    """Return the checksums of all blocks."""
    return np.array([block_crc(segment, b) for b in range(len(segment.buckets))], dtype=np.uint32)


class StoredCheck(BlockCheck):
    """Checks of a stored segment, each made once, when something is first read.

    Two threads may check the same block at the same time; they come to the same result.
    """

    def __init__(
        self,
        path: Path,
        record: SegmentRecord,
        raw: npt.NDArray[np.uint8],
        mapped: mmap_module.mmap | None,
        crcs: npt.NDArray[np.uint32],
    ) -> None:
        self.path = path
        self._record = record
        self._raw = raw
        self._mapped = mapped
        self._crcs = crcs
        self.checked = np.zeros(len(crcs) + 1, dtype=np.bool_)
        self._sections: set[str] = set()

    def buckets(self, segment: Segment, rows: Int64s) -> None:
        """Check blocks that were not checked before."""
        rows = rows[~self.checked[rows]]
        if len(rows) > 0:
            self._refuse_shrunk()
        for row in rows.tolist():
            if block_crc(segment, row) != self._crcs[row]:
                raise CorruptIndexError(self._damaged_block(segment, row))
            self.checked[row] = True

    def ids(self, segment: Segment) -> None:
        """Check ids and item numbers as a whole; numbers out of range would lead a kernel astray."""
        if self.checked[-1]:
            return
        self.section("ids")
        if segment.items is not None:
            self.section("items")
            if segment.items.min() < 0 or segment.items.max() >= segment.n_items:
                raise CorruptIndexError(f"{self.path}: items must be in 0..{segment.n_items - 1}")
        self.checked[-1] = True

    def labels(self, segment: Segment) -> None:
        """Check all labels."""
        self.section("labels")

    def section(self, name: str) -> None:
        """Check a whole array that was not checked before."""
        if name not in self._sections:
            self._refuse_shrunk()
            problem = self._section_problem(name)
            if problem:
                raise CorruptIndexError(problem)
            self._sections.add(name)

    def everything(self, segment: Segment) -> None:
        """Check all sections, padding included, and all blocks."""
        for name in self._record.sections:
            self.section(name)
        self.ids(segment)
        self.buckets(segment, np.arange(len(self._crcs)))

    def problems(self, segment: Segment) -> list[str]:
        """Check everything anew, and list all that is wrong."""
        try:
            self._refuse_shrunk()
        except CorruptIndexError as error:
            return [str(error)]
        return [p for name in self._record.sections if (p := self._section_problem(name))] + [
            self._damaged_block(segment, row)
            for row in range(len(self._crcs))
            if block_crc(segment, row) != self._crcs[row]
        ]

    def _damaged_block(self, segment: Segment, row: int) -> str:
        return f"{self.path}: bucket {segment.buckets[row]} is damaged: its checksum is wrong"

    def _section_problem(self, name: str) -> str | None:
        section = self._record.sections[name]
        data = self._raw[section.offset : section.offset + section.bytes]
        if zlib.crc32(as_bytes(data)) == section.crc32:
            return None
        return f"{self.path}: section {name} is damaged: its checksum is wrong"

    def _refuse_shrunk(self) -> None:
        """Reading beyond the end of a mapped file would end the process."""
        if self._mapped is not None and self._mapped.size() != self._record.bytes:
            raise CorruptIndexError(
                f"{self.path} has {self._mapped.size()} bytes, must have {self._record.bytes}"
            )


# -- structure -----------------------------------------------------------------------------------


def structure_problems(segment: Segment, n_buckets: int, dim: int) -> list[str]:
    """List what is wrong with the arrays that tell where things are; the others are not read."""
    n = len(segment.ids)
    buckets, offsets = segment.buckets, segment.offsets
    kinds: list[tuple[str, Any, Any, tuple[int, ...]]] = [
        ("ids", segment.ids, np.int64, (n,)),
        ("vectors", segment.vectors, np.float32, (n, dim)),
        ("buckets", buckets, np.int64, (len(buckets),)),
        ("offsets", offsets, np.int64, (len(buckets) + 1,)),
    ]
    if segment.items is not None:
        kinds.append(("items", segment.items, np.int32, (n,)))
    if segment.labels is not None:
        kinds.append(("labels", segment.labels, segment.labels.dtype, (n,)))
    problems = [
        f"{name} is {array.dtype}{list(array.shape)}, must be {np.dtype(dtype)}{list(shape)}"
        for name, array, dtype, shape in kinds
        if array.dtype != dtype or array.shape != shape
    ]
    if problems:
        return problems
    if segment.labels is not None and segment.labels.dtype not in (np.int32, np.int64):
        problems.append(f"labels has dtype {segment.labels.dtype}, must be int32 or int64")
    if n == 0 or len(buckets) == 0:
        return [*problems, "a segment must not be empty"]
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
    if len(view.removed) not in (0, segment.n_entries):
        problems.append(f"{len(view.removed)} removal marks for {segment.n_entries} entries")
    elif (n_live := len(np.unique(segment.ids[view.live_entries()]))) != view.n_items:
        problems.append(f"{n_live} items are there, must be {view.n_items}")
    return problems
