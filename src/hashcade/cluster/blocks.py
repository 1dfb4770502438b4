"""Blocks and their directory as bytes, and how they are read from Redis."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hashcade.errors import ClusterError
from hashcade.index import Block, encode_int8

from .generations import Generations
from .keys import HEAD_BYTES, PART_ROOM, n_parts
from .manifest import CODES, VECTORS, Manifest

DIRECTORY = "directory"  # the file with the directory
AT_ONCE = 4 << 20  # bytes that are asked for together
_GAP = 1024  # bytes between two vectors that are read along: a command costs more than these


class Directory(NamedTuple):
    """The occupied buckets of a generation, ascending."""

    buckets: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]  # of entries
    crcs: dict[str, npt.NDArray[np.uint32]]  # of the blocks, by kind

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
    """Fetch the directory."""
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
    """Write the parts of a file into an array of just its length."""
    room, at = target.view(np.uint8).reshape(-1), 0
    for part in parts:
        if at + len(part) > len(room):
            at = -1
            break
        room[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    if at != len(room):
        raise ClusterError("a file contradicts the manifest", hint="publish the table")


def block_arrays(block: Block, first_pass: str | None) -> dict[str, dict[str, bytes]]:
    """The arrays of the blocks of a bucket, as ``Manifest.kinds`` names them, as bytes.

    One after the other they are what is stored.
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
    """The CRC-32 of each vector, for those that are read by themselves."""
    return list(map(zlib.crc32, vectors))


def split_block(data: memoryview, manifest: Manifest, kind: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a block of the right length."""
    n = len(data) // manifest.entry_bytes(kind)
    arrays: dict[str, npt.NDArray[Any]] = {}
    at = 0
    for name, entry in manifest.kinds[kind].items():
        arrays[name] = np.frombuffer(data, entry, n, at)
        at += arrays[name].nbytes
    return arrays


def fetch_blocks(
    generations: Generations,
    manifest: Manifest,
    directory: Directory,
    kind: str,
    rows: Sequence[int],
) -> Iterator[memoryview | ClusterError]:
    """Blocks of the directory, or what is wrong with them, in the order of ``rows``."""
    batch: list[int] = []
    n_bytes, entry_bytes = 0, manifest.entry_bytes(kind)
    for row in rows:
        batch.append(row)
        n_bytes += int(directory.counts[row]) * entry_bytes
        if n_bytes >= AT_ONCE:
            yield from _fetch(generations, manifest, directory, kind, batch)
            batch, n_bytes = [], 0
    if batch:
        yield from _fetch(generations, manifest, directory, kind, batch)


def block_keys(
    generations: Generations, manifest: Manifest, directory: Directory, kind: str, row: int
) -> list[str]:
    """Keys of the parts of a block."""
    bucket, count = int(directory.buckets[row]), int(directory.counts[row])
    total = n_parts(count * manifest.entry_bytes(kind))
    return generations.keys.block(manifest.generation, kind, bucket, total)


def _fetch(
    generations: Generations,
    manifest: Manifest,
    directory: Directory,
    kind: str,
    rows: Sequence[int],
) -> Iterator[memoryview | ClusterError]:
    keys = [block_keys(generations, manifest, directory, kind, row) for row in rows]
    values = iter(generations.reader.get_many([key for parts in keys for key in parts]))
    for row, names in zip(rows, keys, strict=True):
        given = [next(values) for _ in names]
        try:
            parts = [
                generations.part(key, value, number, len(names))
                for number, (key, value) in enumerate(zip(names, given, strict=True))
            ]
        except ClusterError as error:
            yield error
            continue
        data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        length = int(directory.counts[row]) * manifest.entry_bytes(kind)
        if len(data) != length or zlib.crc32(data) != directory.crcs[kind][row]:
            yield generations.error(names[0], "is not the block that the directory names")
        else:
            yield data


def fetch_vectors(
    generations: Generations,
    manifest: Manifest,
    directory: Directory,
    rows: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    crcs: npt.NDArray[np.uint32],
) -> npt.NDArray[np.float32]:
    """Single vectors, ascending, by the row of the block and the place in it; checksums hold."""
    size = manifest.entry_bytes(VECTORS)
    apart = (np.diff(rows) != 0) | (np.diff(places) * size > size + _GAP)
    firsts = np.concatenate([[0], np.flatnonzero(apart) + 1])
    lasts = np.concatenate([firsts[1:] - 1, [len(rows) - 1]])
    keys = {
        row: block_keys(generations, manifest, directory, VECTORS, row)
        for row in np.unique(rows).tolist()
    }
    asked, spans = [], np.stack([rows[firsts], places[firsts], places[lasts] + 1], axis=1)
    for row, start, stop in spans.tolist():
        at, end = start * size, stop * size
        while at < end:  # a part may end within a vector
            part, skipped = divmod(at, PART_ROOM)
            length = min(end - at, PART_ROOM - skipped)
            first = HEAD_BYTES + skipped
            asked.append((keys[row][part], first, first + length - 1))
            at += length
    values = generations.reader.get_ranges(asked)
    for (key, first, last), value in zip(asked, values, strict=True):
        if len(value) != last - first + 1:
            raise generations.error(key, "is missing, or shorter than it must be")
    data = np.frombuffer(b"".join(values), np.dtype(("<f4", (manifest.dim,))))
    lengths = spans[:, 2] - spans[:, 1]
    shift = np.cumsum(lengths) - lengths - spans[:, 1]
    vectors = data[places + np.repeat(shift, lasts - firsts + 1)]
    wrong = np.flatnonzero(np.array(vector_crcs(vectors), np.uint32) != crcs)
    if len(wrong):
        row, place = int(rows[wrong[0]]), int(places[wrong[0]])
        key = keys[row][place * size // PART_ROOM]
        raise generations.error(key, f"has a wrong checksum of vector {place} of its block")
    return np.asarray(vectors, np.float32)
