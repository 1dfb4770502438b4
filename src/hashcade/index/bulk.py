"""An index of more than memory holds: one segment, merged from sorted runs by ranges of buckets.

A run is a stored index of some of the items, with the numbers of its items counting on from those
of the run before. A range of buckets is one contiguous part of each run and of the new segment, so
ranges are merged in any order, by any number of processes, each into its place in the file. What
comes out is what one segment of all items would be, byte for byte, however the runs were cut.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hashcade._io import replace_file, storage_errors, sync_directory, write_all
from hashcade.codes import CodeShape
from hashcade.errors import CorruptIndexError, add_hint
from hashcade.index import checksums, storage
from hashcade.index.checksums import crc32_combine
from hashcade.index.manifest import MANIFEST_NAME, Manifest, Record
from hashcade.index.segment import Int64s, Segment, View, merge_segments

_BLOCK = ("ids", "items", "labels", "vectors")  # as in the checksum of a block


class BucketRange(NamedTuple):
    """Buckets that are merged together, and where they go in the segment."""

    first: int  # id of a bucket
    last: int
    row: int  # number of the first one among the occupied
    n_buckets: int
    entry: int  # number of the first entry
    n_entries: int


@dataclass(frozen=True, eq=False)
class MergePlan:
    """One segment in the making. ``starts`` are numbers of the first items of the runs."""

    runs: tuple[Path, ...]
    starts: tuple[int, ...]
    shape: CodeShape
    dim: int
    unit_length: bool
    n_items: int
    next_id: int
    max_norm: float
    buckets: Int64s  # (n_buckets,) ids of the occupied ones, ascending
    offsets: Int64s  # (n_buckets + 1,)

    @classmethod
    def of_runs(cls, runs: Sequence[Path]) -> MergePlan:
        """Plan a segment of all items of these runs, which have labels and one segment each."""
        counts: dict[str, Any] = {"starts": [], "n_items": 0, "next_id": 0, "max_norm": 0.0}
        buckets = sizes = np.empty(0, dtype=np.int64)
        for path in runs:
            segment, manifest = _open_run(path)
            counts["starts"].append(counts["n_items"])
            counts["n_items"] += segment.n_items
            counts["next_id"] = max(counts["next_id"], manifest.next_id)
            counts["max_norm"] = max(counts["max_norm"], segment.max_norm)
            together = np.concatenate([buckets, segment.buckets])
            buckets, place = np.unique(together, return_inverse=True)
            old, sizes = sizes, np.zeros(len(buckets), dtype=np.int64)
            sizes[place[: len(old)]] = old
            sizes[place[len(old) :]] += np.diff(segment.offsets)
        if counts["n_items"] >= 2**31 and manifest.shape.sparsity > 1:
            message = f"{counts['n_items']:,} items, with sparsity > 1 a table holds 2**31 - 1"
            raise add_hint(ValueError(message), "build several tables")
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(
            tuple(runs), tuple(counts.pop("starts")), manifest.shape, manifest.dim,
            manifest.unit_length, **counts, buckets=buckets, offsets=offsets,
        )  # fmt: skip

    @property
    def n_entries(self) -> int:
        """Number of entries: items times their buckets."""
        return int(self.offsets[-1])

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry."""
        sections = self.sections()
        return sum(_row_bytes(sections[name]) for name in self._names())

    def _names(self) -> list[str]:
        return [name for name in _BLOCK if name != "items" or self.shape.sparsity > 1]

    def sections(self) -> Record:
        """Where the arrays lie in the file of the segment."""
        n, m = self.n_entries, len(self.buckets)
        kinds: dict[str, tuple[str, tuple[int, ...]]] = {
            "vectors": ("<f4", (n, self.dim)), "ids": ("<i8", (n,)),
            "labels": ("<i4", (n,)), "items": ("<i4", (n,)),
            "buckets": ("<i8", (m,)), "offsets": ("<i8", (m + 1,)), "blocks": ("<u4", (m,)),
        }  # fmt: skip
        if self.shape.sparsity == 1:
            del kinds["items"]
        return storage.place_sections(kinds)

    def ranges(self, n_bytes: int) -> list[BucketRange]:
        """Cut the buckets into ranges of so many bytes; a larger bucket is a range of its own."""
        most = max(1, n_bytes // self.entry_bytes)
        cuts = [0]
        while cuts[-1] < len(self.buckets):
            start = int(self.offsets[cuts[-1]])
            full = int(np.searchsorted(self.offsets, start + most, side="right")) - 1
            cuts.append(max(full, cuts[-1] + 1))
        return [
            BucketRange(
                int(self.buckets[low]), int(self.buckets[high - 1]), low, high - low,
                int(self.offsets[low]), int(self.offsets[high] - self.offsets[low]),
            )
            for low, high in pairwise(cuts)
        ]  # fmt: skip

    def allocate(self, directory: Path, uid: str) -> None:
        """Make the file of the segment, unless it is there."""
        path = _segment_path(directory, uid)
        with storage_errors(f"cannot write {path}"):
            directory.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.truncate(_length(self.sections()))
            sync_directory(directory)

    def merge(
        self, directory: Path, uid: str, span: BucketRange, n_bytes: int
    ) -> npt.NDArray[np.uint32]:
        """Merge a range of buckets into the segment; on the disk when this returns.

        Returns checksums for :meth:`finish`: of its part of each array, then of its blocks. A
        bucket of more than ``n_bytes`` is copied piece by piece.
        """
        path = _segment_path(directory, uid)
        sections, names = self.sections(), self._names()
        crcs = dict.fromkeys(names, 0)
        large = span.n_entries * self.entry_bytes > n_bytes
        step = max(1, n_bytes // self.entry_bytes)
        pieces = self._copied(span, step) if large else self._merged(span)
        block = 0
        blocks: list[int] = []
        at = dict.fromkeys(names, span.entry)
        with storage_errors(f"cannot write {path}"), path.open("r+b", buffering=0) as file:
            for name, array in pieces:
                if name == "blocks":
                    blocks = array.tolist()
                    continue
                section = sections[name]
                data = np.ascontiguousarray(array, section["dtype"])
                _write_at(file, section["offset"] + at[name] * _row_bytes(section), data)
                at[name] += len(data)
                crcs[name] = zlib.crc32(data.data, crcs[name])
                block = zlib.crc32(data.data, block)
            os.fsync(file.fileno())
        return np.array([*crcs.values(), *(blocks or [block])], dtype=np.uint32)

    def _merged(self, span: BucketRange) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Arrays of a range of buckets that fits into memory, and the checksums of its blocks."""
        parts = list(self._parts(span))
        merged = merge_segments([View(replace(part, items=None)) for _, part in parts])
        arrays = merged.arrays
        if self.shape.sparsity > 1:
            bucket = [np.repeat(part.buckets, np.diff(part.offsets)) for _, part in parts]
            order = np.argsort(np.concatenate(bucket), kind="stable")
            numbers = [np.int32(start) + part.arrays["items"] for start, part in parts]
            arrays["items"] = np.concatenate(numbers)[order]
        rows = range(len(merged.buckets))
        crcs = [checksums.block_crc(arrays, row) for row in rows]
        yield from ((name, arrays[name]) for name in self._names())
        yield "blocks", np.array(crcs, dtype=np.uint32)

    def _copied(self, span: BucketRange, step: int) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Arrays of one large bucket, piece by piece."""
        for name in self._names():
            for start, part in self._parts(span):
                array = part.arrays[name]
                for at in range(0, len(array), step):
                    piece = array[at : at + step]
                    yield name, piece + np.int32(start) if name == "items" else piece

    def _parts(self, span: BucketRange) -> Iterator[tuple[int, Segment]]:
        """What each run has of a range: the number of its first item, and a segment; checked."""
        for start, path in zip(self.starts, self.runs, strict=True):
            run, _ = _open_run(path)
            low = int(np.searchsorted(run.buckets, span.first))
            high = int(np.searchsorted(run.buckets, span.last, side="right"))
            if low == high:
                continue
            run.check.blocks(np.arange(low, high))
            cut = slice(int(run.offsets[low]), int(run.offsets[high]))
            yield start, Segment(
                run.vectors[cut], run.ids[cut], None if run.labels is None else run.labels[cut],
                None if run.items is None else run.items[cut], run.buckets[low:high].copy(),
                run.offsets[low : high + 1] - run.offsets[low], run.n_items, run.max_norm,
            )  # fmt: skip

    def finish(
        self, directory: Path, uid: str, generation: str,
        merged: Sequence[tuple[BucketRange, npt.NDArray[np.uint32]]],
    ) -> None:  # fmt: skip
        """Write the rest of the segment and the manifest, when all ranges were merged."""
        path, sections, names = _segment_path(directory, uid), self.sections(), self._names()
        ordered = sorted(merged, key=lambda pair: pair[0].entry)
        crcs = dict.fromkeys(names, 0)
        for span, sums in ordered:
            for name, crc in zip(names, sums[: len(names)].tolist(), strict=True):
                size = _row_bytes(sections[name])
                crcs[name] = crc32_combine(crcs[name], crc, span.n_entries * size)
        blocks = np.concatenate([sums[len(names) :] for _, sums in ordered])
        last = {"buckets": self.buckets, "offsets": self.offsets, "blocks": blocks}
        with storage_errors(f"cannot write {path}"), path.open("r+b", buffering=0) as file:
            for name, section in sections.items():
                used = _row_bytes(section) * section["shape"][0]
                if name in last:
                    data = np.ascontiguousarray(last[name], section["dtype"])
                    _write_at(file, section["offset"], data)
                    crcs[name] = zlib.crc32(data.data)
                padding = bytes(section["bytes"] - used)
                section["crc32"] = zlib.crc32(padding, crcs[name])
            os.fsync(file.fileno())
        place = {"file": path.name, "uid": uid, "bytes": _length(sections)}
        counts = (self.n_items, self.n_entries, self.max_norm)
        record = storage.segment_record(place, *counts, sections)
        manifest = Manifest(
            generation, self.shape, self.dim, True, self.next_id, self.n_items,
            [{**record, "removed": None}], self.unit_length,
        )  # fmt: skip
        replace_file(directory / MANIFEST_NAME, manifest.to_bytes())


def _open_run(path: Path) -> tuple[Segment, Manifest]:
    snapshot, manifest = storage.load(path, mmap=True)
    if len(snapshot.views) != 1:
        raise CorruptIndexError(f"{path} must have one segment")
    return snapshot.views[0].segment, manifest


def _segment_path(directory: Path, uid: str) -> Path:
    return directory / f"segment-{uid}.bin"


def _length(sections: Record) -> int:
    return max(int(section["offset"] + section["bytes"]) for section in sections.values())


def _row_bytes(section: Record) -> int:
    columns = section["shape"][1] if len(section["shape"]) > 1 else 1
    return int(columns * np.dtype(section["dtype"]).itemsize)


def _write_at(file: FileIO, offset: int, data: npt.NDArray[Any]) -> None:
    file.seek(offset)
    write_all(file, data)
