"""External merge sort for an index larger than memory: one segment, merged from sorted runs.

A run is a stored index of some of the items, whose item numbers continue those of the previous run.
A range of buckets is one contiguous part of each run and of the new segment, so ranges are merged
in any order, by any number of processes, each into its place in the file. The result is byte for
byte the segment of all items, however they were divided into runs.
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
from hashcade.errors import CorruptIndexError, add_hint
from hashcade.index import checksums, storage
from hashcade.index.checksums import crc32_combine
from hashcade.index.manifest import MANIFEST_NAME, Manifest, Record
from hashcade.index.segment import Int64s, Segment


class BucketRange(NamedTuple):
    """Buckets that are merged together, and their position in the segment."""

    first: int  # bucket id
    last: int
    row: int  # number of the first one among the occupied buckets
    n_buckets: int
    entry: int  # number of the first entry
    n_entries: int


@dataclass(frozen=True, eq=False)
class MergePlan:
    """The plan of one segment, of runs that differ only in their items."""

    runs: tuple[Path, ...]
    starts: tuple[int, ...]  # numbers of their first items
    manifest: Manifest  # as of a run, with the totals of all items
    kinds: dict[str, tuple[str, tuple[int, ...]]]  # dtypes of arrays, and shapes of their rows
    max_norm: float
    buckets: Int64s  # (n_buckets,) ids of the occupied ones, ascending
    offsets: Int64s  # (n_buckets + 1,)

    @classmethod
    def of_runs(cls, runs: Sequence[Path]) -> MergePlan:
        """Plan a segment of all items of these runs, each of which has one segment."""
        starts, max_norm, next_id = [0], 0.0, 0
        buckets = sizes = np.empty(0, dtype=np.int64)
        for path in runs:
            segment, manifest = _open_run(path)
            starts.append(starts[-1] + segment.n_items)
            next_id = max(next_id, manifest.next_id)
            max_norm = max(max_norm, segment.max_norm)
            all_buckets = np.concatenate([buckets, segment.buckets])
            buckets, positions = np.unique(all_buckets, return_inverse=True)
            old_sizes, sizes = sizes, np.zeros(len(buckets), dtype=np.int64)
            sizes[positions[: len(old_sizes)]] = old_sizes
            sizes[positions[len(old_sizes) :]] += np.diff(segment.offsets)
        n_items = starts.pop()
        if n_items >= 2**31 and manifest.shape.sparsity > 1:
            message = f"{n_items:,} items, with sparsity > 1 a table holds 2**31 - 1"
            raise add_hint(ValueError(message), "build several tables")
        sections = manifest.segments[0]["sections"].items()
        kinds = {
            name: (section["dtype"], tuple(section["shape"][1:]))
            for name, section in sections
            if name in checksums.BLOCK_ARRAYS
        }
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        merged_manifest = replace(manifest, next_id=next_id, n_items=n_items, segments=[])
        return cls(tuple(runs), tuple(starts), merged_manifest, kinds, max_norm, buckets, offsets)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self.manifest.n_items

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
        return [name for name in checksums.BLOCK_ARRAYS if name in self.kinds]

    def sections(self) -> Record:
        """The layout of the file of the segment."""
        n, m = self.n_entries, len(self.buckets)
        kinds = {name: (dtype, (n, *row)) for name, (dtype, row) in self.kinds.items()}
        tail = {"buckets": ("<i8", (m,)), "offsets": ("<i8", (m + 1,)), "blocks": ("<u4", (m,))}
        return storage.place_sections({**kinds, **tail})

    def ranges(self, n_bytes: int) -> list[BucketRange]:
        """Divide the buckets into ranges of ``n_bytes``; a larger bucket is a separate range."""
        max_entries = max(1, n_bytes // self.entry_bytes)
        cuts = [0]
        while cuts[-1] < len(self.buckets):
            start = int(self.offsets[cuts[-1]])
            end = int(np.searchsorted(self.offsets, start + max_entries, side="right")) - 1
            cuts.append(max(end, cuts[-1] + 1))
        return [
            BucketRange(
                int(self.buckets[low]), int(self.buckets[high - 1]), low, high - low,
                int(self.offsets[low]), int(self.offsets[high] - self.offsets[low]),
            )
            for low, high in pairwise(cuts)
        ]  # fmt: skip

    def allocate(self, directory: Path, uid: str) -> None:
        """Create the file of the segment, unless it exists."""
        path = _segment_path(directory, uid)
        with storage_errors(f"cannot write {path}"):
            directory.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.truncate(_length(self.sections()))
            sync_directory(directory)

    def merge(
        self, directory: Path, uid: str, span: BucketRange, n_bytes: int
    ) -> npt.NDArray[np.uint32]:
        """Merge a range of buckets into the segment; flushed to the disk when this returns.

        Returns checksums for :meth:`finish`: of its part of each array, then of its blocks. A
        bucket of more than ``n_bytes`` is copied piece by piece.
        """
        path = _segment_path(directory, uid)
        sections, names = self.sections(), self._names()
        crcs = dict.fromkeys(names, 0)
        is_large = span.n_entries * self.entry_bytes > n_bytes
        step = max(1, n_bytes // self.entry_bytes)
        pieces = self._copy_pieces(span, step) if is_large else self._merge_pieces(span)
        block = 0
        blocks: list[int] = []
        positions = dict.fromkeys(names, span.entry)
        with storage_errors(f"cannot write {path}"), path.open("r+b", buffering=0) as file:
            for name, array in pieces:
                if name == "blocks":
                    blocks = array.tolist()
                    continue
                section = sections[name]
                data = np.ascontiguousarray(array, section["dtype"])
                _write_at(file, section["offset"] + positions[name] * _row_bytes(section), data)
                positions[name] += len(data)
                crcs[name] = zlib.crc32(data.data, crcs[name])
                block = zlib.crc32(data.data, block)
            os.fsync(file.fileno())
        return np.array([*crcs.values(), *(blocks or [block])], dtype=np.uint32)

    def _merge_pieces(self, span: BucketRange) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Arrays of a range of buckets that fits into memory, and the checksums of its blocks."""
        parts = list(self._parts(span))
        order = np.argsort(np.concatenate([bucket for bucket, _ in parts]), kind="stable")
        ends = self.offsets[span.row : span.row + span.n_buckets + 1] - span.entry
        blocks = [0] * span.n_buckets
        for name in self._names():
            array = np.concatenate([arrays[name] for _, arrays in parts])[order]
            cuts = pairwise(ends.tolist())
            blocks = [
                zlib.crc32(array[low:high].data, crc)
                for crc, (low, high) in zip(blocks, cuts, strict=True)
            ]
            yield name, array
        yield "blocks", np.array(blocks, dtype=np.uint32)

    def _copy_pieces(self, span: BucketRange, step: int) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Arrays of one large bucket, piece by piece."""
        for name in self._names():
            for _, arrays in self._parts(span):
                array = arrays[name]
                yield from ((name, array[i : i + step]) for i in range(0, len(array), step))

    def _parts(self, span: BucketRange) -> Iterator[tuple[Int64s, dict[str, npt.NDArray[Any]]]]:
        """The part of each run in a range: the bucket of each entry, and the checked arrays."""
        for start, path in zip(self.starts, self.runs, strict=True):
            run, _ = _open_run(path)
            low = int(np.searchsorted(run.buckets, span.first))
            high = int(np.searchsorted(run.buckets, span.last, side="right"))
            if low == high:
                continue
            run.check.blocks(np.arange(low, high))
            ends = run.offsets[low : high + 1]
            arrays = {name: run.arrays[name][ends[0] : ends[-1]] for name in self._names()}
            if "items" in arrays:
                arrays["items"] = arrays["items"] + np.int32(start)
            yield np.repeat(run.buckets[low:high], np.diff(ends)), arrays

    def finish(
        self, directory: Path, uid: str, generation: str,
        merged: Sequence[tuple[BucketRange, npt.NDArray[np.uint32]]],
    ) -> None:  # fmt: skip
        """Write the other arrays of the segment, and the manifest, after all ranges were merged."""
        path, sections, names = _segment_path(directory, uid), self.sections(), self._names()
        ordered = sorted(merged, key=lambda pair: pair[0].entry)
        crcs = dict.fromkeys(names, 0)
        for span, range_crcs in ordered:
            for name, crc in zip(names, range_crcs[: len(names)].tolist(), strict=True):
                size = _row_bytes(sections[name])
                crcs[name] = crc32_combine(crcs[name], crc, span.n_entries * size)
        blocks = np.concatenate([range_crcs[len(names) :] for _, range_crcs in ordered])
        final_arrays = {"buckets": self.buckets, "offsets": self.offsets, "blocks": blocks}
        with storage_errors(f"cannot write {path}"), path.open("r+b", buffering=0) as file:
            for name, section in sections.items():
                n_used = _row_bytes(section) * section["shape"][0]
                if name in final_arrays:
                    data = np.ascontiguousarray(final_arrays[name], section["dtype"])
                    _write_at(file, section["offset"], data)
                    crcs[name] = zlib.crc32(data.data)
                padding = bytes(section["bytes"] - n_used)
                section["crc32"] = zlib.crc32(padding, crcs[name])
            os.fsync(file.fileno())
        file_record = {"file": path.name, "uid": uid, "bytes": _length(sections)}
        counts = (self.n_items, self.n_entries, self.max_norm)
        record = {**storage.segment_record(file_record, *counts, sections), "removed": None}
        manifest = replace(self.manifest, generation=generation, segments=[record])
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
