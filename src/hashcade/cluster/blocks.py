"""Blocks and their directory as bytes, and how they are read from Redis."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hashcade.errors import ClusterError
from hashcade.index import Block

from .generations import Generations
from .keys import n_parts
from .manifest import Manifest

DIRECTORY = "directory"  # the file with the directory
_AT_ONCE = 4 << 20  # bytes that are asked for together


class Directory(NamedTuple):
    """The occupied buckets of a generation, ascending."""

    buckets: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]  # of entries
    crcs: npt.NDArray[np.uint32]  # of the blocks

    def to_bytes(self) -> bytes:
        """The content of the file."""
        numbers = self.buckets.astype("<i8").tobytes() + self.counts.astype("<i8").tobytes()
        return numbers + self.crcs.astype("<u4").tobytes()


def read_directory(generations: Generations, manifest: Manifest) -> Directory:
    """Fetch the directory."""
    n = manifest.n_buckets
    raw = np.empty(20 * n, dtype=np.uint8)
    gather(generations.file(manifest, DIRECTORY), raw)
    buckets, counts = raw[: 8 * n].view("<i8"), raw[8 * n : 16 * n].view("<i8")
    crcs = raw[16 * n :].view("<u4")
    if counts.min() < 1 or counts.max() > manifest.n_entries or counts.sum() != manifest.n_entries:
        raise ClusterError("the directory contradicts the manifest", hint="publish the table")
    return Directory(buckets.astype(np.int64), counts.astype(np.int64), crcs.astype(np.uint32))


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


def block_arrays(block: Block) -> dict[str, bytes]:
    """The arrays of a block as bytes; one after the other they are what is stored."""
    return {
        name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        for name, array in block.arrays.items()
    }


def split_block(data: memoryview, manifest: Manifest) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a block of the right length."""
    n = len(data) // manifest.entry_bytes
    arrays: dict[str, npt.NDArray[Any]] = {}
    at = 0
    for name, kind in manifest.columns.items():
        arrays[name] = np.frombuffer(data, kind, n, at)
        at += arrays[name].nbytes
    vectors = np.frombuffer(data, "<f4", n * manifest.dim, at)
    return {**arrays, "vectors": vectors.reshape(n, manifest.dim)}


def fetch_blocks(
    generations: Generations, manifest: Manifest, directory: Directory, rows: Sequence[int]
) -> Iterator[memoryview | ClusterError]:
    """Blocks of the directory, or what is wrong with them, in the order of ``rows``."""
    batch: list[int] = []
    n_bytes = 0
    for row in rows:
        batch.append(row)
        n_bytes += int(directory.counts[row]) * manifest.entry_bytes
        if n_bytes >= _AT_ONCE:
            yield from _fetch(generations, manifest, directory, batch)
            batch, n_bytes = [], 0
    if batch:
        yield from _fetch(generations, manifest, directory, batch)


def _fetch(
    generations: Generations, manifest: Manifest, directory: Directory, rows: Sequence[int]
) -> Iterator[memoryview | ClusterError]:
    keys = []
    for row in rows:
        bucket, count = int(directory.buckets[row]), int(directory.counts[row])
        total = n_parts(count * manifest.entry_bytes)
        keys.append(generations.keys.block(manifest.generation, bucket, total))
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
        length = int(directory.counts[row]) * manifest.entry_bytes
        if len(data) != length or zlib.crc32(data) != directory.crcs[row]:
            yield generations.error(names[0], "is not the block that the directory names")
        else:
            yield data
