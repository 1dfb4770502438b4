"""An index on disk: written so that it is the old state or the new one, read so that it is right.

::

    index/
        manifest.json        what belongs to the index, with a checksum of itself
        segment-<uid>.bin    arrays of one segment, each at a multiple of 64 bytes
        removed-<uid>.bin    one bit per removed entry of a segment
        lock                 held by the writer, by a service as long as it runs

Files other than the manifest are written once under a name of their own, flushed to the disk, and
never touched again. The manifest is written beside the old one and renamed over it, which is the
one moment at which the state changes. Segments that are there already are not written again.
What no manifest names is left over from a writer that was stopped, and is removed by the next.

Reading checks the manifest, the length of every file and the arrays that say where things are.
The blocks of the buckets are checked when they are first read (:class:`StoredCheck`): a query
waits for its own buckets alone, and a damaged one is an error, not an answer. What is damaged
after it was checked, by a disk that forgets or a program that writes to the files, is not seen
until the index is loaded again or verified.
"""

from __future__ import annotations

import mmap as mmap_module
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.errors import CorruptIndexError, StorageError
from hashcade.index import _manifest as manifests
from hashcade.index._blocks import StoredCheck, as_bytes, block_crcs, checked_structure
from hashcade.index._directory import build_directory
from hashcade.index._lock import LOCK_NAME, writer_lock
from hashcade.index._manifest import MANIFEST_NAME, Manifest, Removed, Section, SegmentRecord
from hashcade.index._snapshot import Snapshot
from hashcade.index._table import Segment, View, new_uid

_ALIGNMENT = 64
_CHUNK = 1 << 24
_OURS = ("segment-", "removed-", "manifest-")
_RETRIES = 1000


# -- writing -------------------------------------------------------------------------------------


def save(
    directory: Path,
    snapshot: Snapshot,
    generation: str,
    expected: frozenset[str] | None,
    *,
    held: bool = False,
) -> None:
    """Write a snapshot as a new generation.

    ``expected`` are the generations of which the directory must still hold one, because the
    snapshot goes back to it; None if it may hold anything. With ``held`` the caller has the lock of
    the directory. After an error the directory holds the old generation, or the new one if only
    the last flush to the disk failed.
    """
    with _storage_errors(f"cannot write the index {directory}"):
        _make_directory(directory)
        with nullcontext() if held else writer_lock(directory):
            current = _current(directory)
            if expected is not None and (current is None or current.generation not in expected):
                raise StorageError(
                    f"{directory} was changed by another writer since it was read here;"
                    " load it again, or save elsewhere"
                )
            written: list[Path] = []
            try:
                manifest = _write_files(directory, snapshot, generation, current, written)
                new = directory / f"manifest-{new_uid()}.tmp"
                written.append(new)
                _write(new, [manifests.to_bytes(manifest)])
                _flush_directory(directory)
                os.replace(new, directory / MANIFEST_NAME)
            except BaseException:
                for path in written:
                    path.unlink(missing_ok=True)
                raise
            _flush_directory(directory)
            _sweep(directory, manifest)


def _make_directory(directory: Path) -> None:
    if directory.is_dir():
        strangers = [p.name for p in directory.iterdir() if not _is_ours(p.name)]
        if strangers and not (directory / MANIFEST_NAME).exists():
            raise StorageError(f"{directory} is not an index and not empty: {min(strangers)}")
        return
    directory.mkdir(parents=True)
    _flush_directory(directory.parent)


def _is_ours(name: str) -> bool:
    return name.startswith(_OURS) or name in (MANIFEST_NAME, LOCK_NAME)


def _current(directory: Path) -> Manifest | None:
    try:
        return read_manifest(directory)
    except (FileNotFoundError, CorruptIndexError):
        return None  # nothing there that could be kept


def _write_files(
    directory: Path,
    snapshot: Snapshot,
    generation: str,
    current: Manifest | None,
    written: list[Path],
) -> Manifest:
    there = {record.uid: record for record in current.segments} if current else {}
    records = []
    for view in snapshot.views:
        record = there.get(view.segment.uid)
        if record is None or not _has_size(directory / record.file, record.bytes):
            record = _write_segment(directory, view.segment, written)
        removed = None
        if len(view.dead) > 0:
            removed = record.removed
            if (
                removed is None
                or removed.uid != view.dead_uid
                or not _has_size(directory / removed.file, removed.bytes)
            ):
                removed = _write_removed(directory, view, written)
        records.append(replace(record, removed=removed))
    return Manifest(
        generation=generation,
        shape=snapshot.shape,
        dim=snapshot.dim,
        with_labels=snapshot.with_labels,
        next_id=snapshot.next_id,
        n_items=snapshot.n_items,
        segments=tuple(records),
    )


def _has_size(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size


def _write_segment(directory: Path, segment: Segment, written: list[Path]) -> SegmentRecord:
    if segment.check is not None:  # what was damaged must not get a new checksum
        segment.check.buckets(segment, np.arange(len(segment.buckets)))
    arrays: dict[str, npt.NDArray[Any] | None] = {
        "vectors": segment.vectors,
        "ids": segment.ids,
        "labels": segment.labels,
        "items": segment.items,
        "buckets": segment.buckets,
        "offsets": segment.offsets,
        "blocks": block_crcs(segment),
    }
    sections = {}
    parts: list[memoryview | bytes] = []
    at = 0
    for name, array in arrays.items():
        if array is None:
            continue
        data = as_bytes(np.ascontiguousarray(array, array.dtype.newbyteorder("<")))
        padding = bytes(-data.nbytes % _ALIGNMENT)
        crc = zlib.crc32(padding, zlib.crc32(data))
        size = data.nbytes + len(padding)
        dtype = array.dtype.newbyteorder("<").str
        sections[name] = Section(at, size, dtype, tuple(array.shape), crc)
        parts += [data, padding]
        at += size
    path = directory / f"segment-{segment.uid}.bin"
    written.append(path)
    _write(path, parts)
    return SegmentRecord(
        path.name, segment.uid, at, segment.n_items, segment.n_entries,
        segment.max_norm, sections, None,
    )  # fmt: skip


def _write_removed(directory: Path, view: View, written: list[Path]) -> Removed:
    bits = np.packbits(view.dead).tobytes()
    path = directory / f"removed-{view.dead_uid}.bin"
    written.append(path)
    _write(path, [bits])
    return Removed(path.name, view.dead_uid, len(bits), zlib.crc32(bits), view.n_dead_items)


def _write(path: Path, parts: list[Any]) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb", buffering=0) as file:
        for part in parts:
            data = memoryview(part)
            at = 0
            while at < data.nbytes:
                at += file.write(data[at : at + _CHUNK])
        os.fsync(file.fileno())


def _flush_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(directory: Path, manifest: Manifest) -> None:
    keep = manifest.files() | {MANIFEST_NAME, LOCK_NAME}
    for path in directory.iterdir():
        if path.name.startswith(_OURS) and path.name not in keep:
            path.unlink(missing_ok=True)


@contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{what}: {error.strerror or error}") from error


# -- reading -------------------------------------------------------------------------------------


def read_manifest(directory: Path) -> Manifest:
    """Read and check the manifest alone."""
    path = directory / MANIFEST_NAME
    return manifests.from_bytes(path.read_bytes(), str(path))


def load(directory: Path, *, mmap: bool) -> tuple[Snapshot, Manifest]:
    """Read an index. A save in between is no trouble: then the new state is read."""
    if not (directory / MANIFEST_NAME).exists():
        raise StorageError(f"{directory} holds no index: there is no {MANIFEST_NAME}")
    with _storage_errors(f"cannot read the index {directory}"):
        for _ in range(_RETRIES):
            manifest = read_manifest(directory)
            try:
                return _open(directory, manifest, mmap), manifest
            except FileNotFoundError as error:
                # Swept away by a save since the manifest was read, unless it is the same still.
                if read_manifest(directory).generation == manifest.generation:
                    raise CorruptIndexError(f"{error.filename} is missing") from error
    raise StorageError(f"{directory} changes faster than it can be read")


def _open(directory: Path, manifest: Manifest, mmap: bool) -> Snapshot:
    views = []
    for record in manifest.segments:
        path = directory / record.file
        try:
            segment = _open_segment(path, record, manifest, mmap)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptIndexError(f"{path}: {error!r}") from error
        dead, uid, n_dead = np.empty(0, dtype=np.uint8), "", 0
        if record.removed is not None:
            dead = _read_removed(directory / record.removed.file, record)
            uid, n_dead = record.removed.uid, record.removed.n_items
        views.append(View(segment, dead, n_dead, uid))
    snapshot = Snapshot(
        tuple(views), build_directory(views, manifest.shape), manifest.shape,
        manifest.dim, manifest.with_labels, manifest.next_id,
    )  # fmt: skip
    if snapshot.n_items != manifest.n_items:
        raise CorruptIndexError(
            f"{directory} has {snapshot.n_items} items, the manifest says {manifest.n_items}"
        )
    return snapshot


def _open_segment(path: Path, record: SegmentRecord, manifest: Manifest, mmap: bool) -> Segment:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != record.bytes:
            raise CorruptIndexError(f"{path} has {size} bytes, must have {record.bytes}")
        mapped = mmap_module.mmap(file.fileno(), 0, access=mmap_module.ACCESS_READ)
    raw = np.frombuffer(mapped, dtype=np.uint8)
    if not mmap:
        raw = raw.copy()
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, section in record.sections.items():
        part = raw[section.offset : section.offset + section.bytes]
        dtype = np.dtype(section.dtype)
        n_bytes = int(np.prod(section.shape, dtype=np.int64)) * dtype.itemsize
        if section.offset % _ALIGNMENT or len(part) != section.bytes or n_bytes > section.bytes:
            raise CorruptIndexError(f"{path}: section {name} does not fit into the file")
        array = part[:n_bytes].view(dtype).reshape(section.shape)
        arrays[name] = array if dtype.isnative else array.astype(dtype.newbyteorder("="))
    check = StoredCheck(path, record, raw, mapped if mmap else None, arrays["blocks"])
    segment = Segment(
        arrays["buckets"], arrays["offsets"], arrays["ids"], arrays["vectors"],
        arrays.get("labels"), arrays.get("items"), record.n_items, record.max_norm,
        uid=record.uid, check=check,
    )  # fmt: skip
    for name in ("buckets", "offsets", "blocks"):
        check.section(segment, name)
    checked_structure(segment, manifest, str(path))
    if not mmap:
        check.everything(segment)
    return segment


def _read_removed(path: Path, record: SegmentRecord) -> npt.NDArray[np.uint8]:
    assert record.removed is not None
    data = path.read_bytes()
    if len(data) != record.removed.bytes or zlib.crc32(data) != record.removed.crc32:
        raise CorruptIndexError(f"{path} is damaged: its checksum or its length is wrong")
    if len(data) != (record.n_entries + 7) // 8:
        raise CorruptIndexError(f"{path} does not fit its segment of {record.n_entries} entries")
    return np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=record.n_entries)
