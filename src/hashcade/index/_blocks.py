"""Blocks: the entries of one bucket, which are read and checked by themselves.

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
from hashcade.index._manifest import Manifest, SegmentRecord
from hashcade.index._table import BlockCheck, Int64s, Segment


def as_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return the bytes of an array without copying them; it must be contiguous."""
    view: Any = array.data
    return memoryview(view).cast("B") if array.size else memoryview(b"")


def block_crc(segment: Segment, number: int) -> int:
    """Return the checksum of the block of bucket ``number``."""
    start, stop = int(segment.offsets[number]), int(segment.offsets[number + 1])
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
        blocks: npt.NDArray[np.uint32],
    ) -> None:
        self.path = path
        self._record = record
        self._raw = raw
        self._mapped = mapped
        self._blocks = blocks
        self.checked = np.zeros(len(blocks), dtype=np.bool_)
        self._sections: set[str] = set()
        self.done = False

    def buckets(self, segment: Segment, which: Int64s) -> None:
        """Check blocks that were not checked before."""
        if self.done:
            return
        todo = which[~self.checked[which]]
        if len(todo) > 0:
            self._refuse_shrunk()
        for number in todo.tolist():
            if block_crc(segment, number) != self._blocks[number]:
                raise CorruptIndexError(
                    f"{self.path}: bucket {segment.buckets[number]} is damaged:"
                    " its checksum is wrong"
                )
        self.checked[todo] = True
        self.done = bool(self.checked.all())

    def section(self, segment: Segment, name: str) -> None:
        """Check a whole array that was not checked before."""
        if name in self._sections:
            return
        self._refuse_shrunk()
        problem = self._section_problem(name)
        if problem:
            raise CorruptIndexError(problem)
        self._sections.add(name)

    def everything(self, segment: Segment) -> None:
        """Check all sections, padding included, and all blocks."""
        for name in self._record.sections:
            self.section(segment, name)
        self.buckets(segment, np.arange(len(self._blocks)))

    def problems(self, segment: Segment) -> list[str]:
        """Check everything anew, and say all that is wrong."""
        try:
            self._refuse_shrunk()
        except CorruptIndexError as error:
            return [str(error)]
        found = [p for name in self._record.sections if (p := self._section_problem(name))]
        found += [
            f"{self.path}: bucket {segment.buckets[number]} is damaged: its checksum is wrong"
            for number in range(len(self._blocks))
            if block_crc(segment, number) != self._blocks[number]
        ]
        return found

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


def checked_structure(segment: Segment, manifest: Manifest, where: str) -> None:
    """Refuse a segment whose arrays do not fit together; vectors and ids are not read."""
    n = len(segment.ids)
    problems = structure_problems(segment, manifest.shape.n_buckets, manifest.dim)
    if (segment.labels is not None) != manifest.with_labels:
        problems.append("labels are not as the manifest says")
    if n != manifest_entries(manifest, segment.uid):
        problems.append(f"{n} entries are not as the manifest says")
    if problems:
        raise CorruptIndexError(f"{where}: {'; '.join(problems)}")


def manifest_entries(manifest: Manifest, uid: str) -> int:
    """Return the number of entries that the manifest gives a segment."""
    return next(record.n_entries for record in manifest.segments if record.uid == uid)


def structure_problems(segment: Segment, n_buckets: int, dim: int) -> list[str]:
    """Say what is wrong with the arrays that tell where things are."""
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
    found = [
        f"{name} is {array.dtype}{list(array.shape)}, must be {np.dtype(dtype)}{list(shape)}"
        for name, array, dtype, shape in kinds
        if array.dtype != dtype or array.shape != shape
    ]
    if found:
        return found
    if segment.labels is not None and segment.labels.dtype.kind != "i":
        found.append(f"labels has dtype {segment.labels.dtype}, must be integers")
    if n == 0 or len(buckets) == 0:
        found.append("a segment must not be empty")
        return found
    if buckets[0] < 0 or buckets[-1] >= n_buckets or (np.diff(buckets) <= 0).any():
        found.append(f"buckets must ascend within 0..{n_buckets - 1}")
    if offsets[0] != 0 or offsets[-1] != n or (np.diff(offsets) <= 0).any():
        found.append(f"offsets must ascend from 0 to {n}")
    return found
