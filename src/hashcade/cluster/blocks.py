"""The binary format of blocks and of their directory, and how they are fetched from Redis."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hashcade.errors import ClusterError
from hashcade.index import Block, encode_int8

from .generations import Generations
from .keys import HEAD_BYTES, PART_DATA_BYTES, n_parts
from .manifest import CODES, VECTORS, Manifest

DIRECTORY = "directory"  # name of its file
BATCH_BYTES = 4 << 20  # bytes per request
_GAP = 1024  # bytes: closer vectors are read by one command, which is cheaper


class Directory(NamedTuple):
    """The occupied buckets of a generation, ascending."""

    buckets: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]  # of entries
    crcs: dict[str, npt.NDArray[np.uint32]]  # checksums of the blocks, by kind

    def to_bytes(self) -> bytes:
        """The content of the file."""
        numbers = self.buckets.astype("<i8").tobytes() + self.counts.astype("<i8").tobytes()
        return numbers + b"".join(crcs.astype("<u4").tobytes() for crcs in self.crcs.values())

    def by_block(self) -> dict[tuple[str, int], int]:
        """Checksums of all blocks by kind and bucket."""
        buckets = self.buckets.tolist()
        return {
            (kind, bucket): crc
            for kind, crcs in self.crcs.items()
            for bucket, crc in zip(buckets, crcs.tolist(), strict=True)
        }


def read_directory(generations: Generations, manifest: Manifest) -> Directory:
    """Fetch and check the directory."""
    n = manifest.n_buckets
    raw = np.empty((16 + 4 * len(manifest.kinds)) * n, dtype=np.uint8)
    gather(generations.file(manifest, DIRECTORY), raw)
    buckets, counts = raw[: 8 * n].view("<i8"), raw[8 * n : 16 * n].view("<i8")
    sums = raw[16 * n :].view("<u4").astype(np.uint32).reshape(-1, n)
    if counts.min() < 1 or counts.max() > manifest.n_entries or counts.sum() != manifest.n_entries:
        raise ClusterError("the directory contradicts the manifest", hint="publish the table")
    crcs = dict(zip(manifest.kinds, sums, strict=True))
    return Directory(buckets.astype(np.int64), counts.astype(np.int64), crcs)


def gather(parts: Iterable[Any], target: npt.NDArray[Any]) -> None:
    """Copy the parts of a file into an array, which must have exactly its size."""
    buffer, offset = target.view(np.uint8).reshape(-1), 0
    for part in parts:
        if offset + len(part) > len(buffer):
            offset = -1  # too long
            break
        buffer[offset : offset + len(part)] = np.frombuffer(part, np.uint8)
        offset += len(part)
    if offset != len(buffer):
        raise ClusterError("a file contradicts the manifest", hint="publish the table")


def block_arrays(block: Block, first_pass: str | None) -> dict[str, dict[str, bytes]]:
    """Arrays of the blocks of a bucket as bytes, by kind and name as in ``Manifest.kinds``.

    A block is stored as the concatenation of its arrays.
    """
    arrays = block.arrays
    kinds = {VECTORS: arrays}
    if first_pass is not None:
        vectors = np.ascontiguousarray(arrays.pop("vectors"))
        codes, bounds = encode_int8(vectors)
        crcs = np.array(vector_crcs(vectors.astype("<f4", copy=False)), np.uint32)
        kinds = {
            CODES: {**arrays, "codes": codes, "code_bounds": bounds, "vector_crcs": crcs},
            VECTORS: {"vectors": vectors},
        }
    return {
        kind: {
            name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
            for name, array in parts.items()
        }
        for kind, parts in kinds.items()
    }


def vector_crcs(vectors: npt.NDArray[Any]) -> list[int]:
    """The CRC-32 of each vector, for vectors that are fetched individually."""
    return list(map(zlib.crc32, vectors))


def split_block(data: memoryview, manifest: Manifest, kind: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a block, whose length was checked."""
    n = len(data) // manifest.entry_bytes(kind)
    arrays: dict[str, npt.NDArray[Any]] = {}
    offset = 0
    for name, dtype in manifest.kinds[kind].items():
        arrays[name] = np.frombuffer(data, dtype, n, offset)
        offset += arrays[name].nbytes
    return arrays


def fetch_blocks(
    generations: Generations,
    manifest: Manifest,
    directory: Directory,
    kind: str,
    rows: Sequence[int],
) -> Iterator[memoryview | ClusterError]:
    """Fetch blocks of the directory, in the order of ``rows``; errors are yielded, not raised."""
    entry_bytes = manifest.entry_bytes(kind)
    for batch in _batches(rows, directory, entry_bytes):
        keys = [block_keys(generations, manifest, directory, kind, row) for row in batch]
        values = iter(generations.reader.get_many([key for parts in keys for key in parts]))
        for row, part_keys in zip(batch, keys, strict=True):
            block_values = [next(values) for _ in part_keys]
            try:
                parts = [
                    generations.part(key, value, number, len(part_keys))
                    for number, (key, value) in enumerate(zip(part_keys, block_values, strict=True))
                ]
            except ClusterError as error:
                yield error
                continue
            data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
            length = int(directory.counts[row]) * entry_bytes
            if len(data) != length or zlib.crc32(data) != directory.crcs[kind][row]:
                yield generations.error(part_keys[0], "is not the block that the directory names")
            else:
                yield data


def _batches(rows: Sequence[int], directory: Directory, entry_bytes: int) -> Iterator[list[int]]:
    """Split rows into batches of blocks of about ``BATCH_BYTES``."""
    batch: list[int] = []
    n_bytes = 0
    for row in rows:
        batch.append(row)
        n_bytes += int(directory.counts[row]) * entry_bytes
        if n_bytes >= BATCH_BYTES:
            yield batch
            batch, n_bytes = [], 0
    if batch:
        yield batch


def block_keys(
    generations: Generations, manifest: Manifest, directory: Directory, kind: str, row: int
) -> list[str]:
    """Keys of the parts of a block."""
    bucket, count = int(directory.buckets[row]), int(directory.counts[row])
    total = n_parts(count * manifest.entry_bytes(kind))
    return generations.keys.block(manifest.generation, kind, bucket, total)


def fetch_vectors(
    generations: Generations,
    manifest: Manifest,
    directory: Directory,
    rows: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    crcs: npt.NDArray[np.uint32],
) -> npt.NDArray[np.float32]:
    """Fetch single vectors, by ascending row of the block and position in it; verify checksums."""
    vector_bytes = manifest.entry_bytes(VECTORS)
    is_gap = (np.diff(rows) != 0) | (np.diff(positions) * vector_bytes > vector_bytes + _GAP)
    firsts = np.concatenate([[0], np.flatnonzero(is_gap) + 1])
    lasts = np.concatenate([firsts[1:] - 1, [len(rows) - 1]])
    keys = {
        row: block_keys(generations, manifest, directory, VECTORS, row)
        for row in np.unique(rows).tolist()
    }
    ranges, spans = [], np.stack([rows[firsts], positions[firsts], positions[lasts] + 1], axis=1)
    for row, start, stop in spans.tolist():
        offset, end = start * vector_bytes, stop * vector_bytes
        while offset < end:  # a part may end within a vector
            part, part_offset = divmod(offset, PART_DATA_BYTES)
            length = min(end - offset, PART_DATA_BYTES - part_offset)
            first = HEAD_BYTES + part_offset
            ranges.append((keys[row][part], first, first + length - 1))
            offset += length
    values = generations.reader.get_ranges(ranges)
    for (key, first, last), value in zip(ranges, values, strict=True):
        if len(value) != last - first + 1:
            raise generations.error(key, "is missing, or shorter than it must be")
    data = np.frombuffer(b"".join(values), np.dtype(("<f4", (manifest.dim,))))
    lengths = spans[:, 2] - spans[:, 1]
    shift = np.cumsum(lengths) - lengths - spans[:, 1]
    vectors = data[positions + np.repeat(shift, lasts - firsts + 1)]
    damaged = np.flatnonzero(np.array(vector_crcs(vectors), np.uint32) != crcs)
    if len(damaged):
        row, position = int(rows[damaged[0]]), int(positions[damaged[0]])
        key = keys[row][position * vector_bytes // PART_DATA_BYTES]
        raise generations.error(key, f"has a wrong checksum of vector {position} of its block")
    return np.asarray(vectors, np.float32)
