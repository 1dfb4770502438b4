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
after it was checked, by a failing disk or a program that writes to the files, is not seen
until the index is loaded again or verified.
"""

from __future__ import annotations

import mmap as mmap_module
import os
import zlib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._io import LOCK_NAME, storage_errors, sync_directory, write_file, writer_lock
from hashcade.errors import CorruptIndexError, StorageError
from hashcade.index import manifest as manifests
from hashcade.index.bucket_tree import build_tree
from hashcade.index.checksums import (
    StoredCheck,
    as_bytes,
    block_crcs,
    content_problems,
    structure_problems,
)
from hashcade.index.manifest import MANIFEST_NAME, Manifest, Removed, Section, SegmentRecord
from hashcade.index.segment import Segment, View, new_uid
from hashcade.index.snapshot import Snapshot

_ALIGNMENT = 64
_OURS = ("segment-", "removed-", "manifest-")
_RETRIES = 1000


def new_generation() -> str:
    """Return a new name for the state of an index on disk, for ``HashIndex.save``."""
    return new_uid()


# -- writing -------------------------------------------------------------------------------------


def save(
    directory: Path,
    snapshot: Snapshot,
    generation: str,
    expected: frozenset[str] | None,
    *,
    lock_held: bool = False,
) -> None:
    """Write a snapshot as a new generation.

    ``expected`` are the generations of which the directory must still hold one, because the
    snapshot goes back to it; None if it may hold anything. With ``lock_held`` the caller has the
    lock of the directory. After an error the directory holds the old generation, or the new one if
    only the last flush to the disk failed.
    """
    with storage_errors(f"cannot write the index {directory}"):
        _make_directory(directory)
        with nullcontext() if lock_held else writer_lock(directory):
            current = _current(directory)
            if expected is not None and (current is None or current.generation not in expected):
                raise StorageError(
                    f"{directory} was changed by another writer since it was read",
                    hint="load it again, or save elsewhere",
                )
            new_files: list[Path] = []
            try:
                manifest = _write_files(directory, snapshot, generation, current, new_files)
                new = directory / f"manifest-{new_uid()}.tmp"
                new_files.append(new)
                write_file(new, [manifests.to_bytes(manifest)])
                sync_directory(directory)
                os.replace(new, directory / MANIFEST_NAME)
            except BaseException:
                for path in new_files:
                    path.unlink(missing_ok=True)
                raise
            sync_directory(directory)
            _remove_leftovers(directory, manifest)


def _make_directory(directory: Path) -> None:
    if directory.is_dir():
        strangers = [p.name for p in directory.iterdir() if not _is_ours(p.name)]
        if strangers and not is_index(directory):
            raise StorageError(
                f"{directory} is not an index and not empty: {min(strangers)}",
                hint="choose another path",
            )
        return
    directory.mkdir(parents=True)
    sync_directory(directory.parent)


def _is_ours(name: str) -> bool:
    return name.startswith(_OURS) or name in (MANIFEST_NAME, LOCK_NAME)


def _current(directory: Path) -> Manifest | None:
    try:
        return read_manifest(directory)
    except (FileNotFoundError, CorruptIndexError):
        return None  # nothing there that could be reused


def _write_files(
    directory: Path,
    snapshot: Snapshot,
    generation: str,
    current: Manifest | None,
    new_files: list[Path],
) -> Manifest:
    present = {record.uid: record for record in current.segments} if current else {}
    records = []
    for view in snapshot.views:
        record = present.get(view.segment.uid)
        if record is None or not _has_size(directory / record.file, record.bytes):
            record = _write_segment(directory, view.segment, new_files)
        removed = None
        if len(view.removed) > 0:
            removed = record.removed
            if (
                removed is None
                or removed.uid != view.removed_uid
                or not _has_size(directory / removed.file, removed.bytes)
            ):
                removed = _write_removed(directory, view, new_files)
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


def _write_segment(directory: Path, segment: Segment, new_files: list[Path]) -> SegmentRecord:
    # What was damaged must not get a new checksum.
    segment.check_rows(np.arange(len(segment.buckets)))
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
    new_files.append(path)
    write_file(path, parts)
    return SegmentRecord(
        path.name, segment.uid, at, segment.n_items, segment.n_entries,
        segment.max_norm, sections, None,
    )  # fmt: skip


def _write_removed(directory: Path, view: View, new_files: list[Path]) -> Removed:
    bits = np.packbits(view.removed).tobytes()
    path = directory / f"removed-{view.removed_uid}.bin"
    new_files.append(path)
    write_file(path, [bits])
    return Removed(path.name, view.removed_uid, len(bits), zlib.crc32(bits), view.n_removed_items)


def _remove_leftovers(directory: Path, manifest: Manifest) -> None:
    keep = manifest.files() | {MANIFEST_NAME, LOCK_NAME}
    for path in directory.iterdir():
        if path.name.startswith(_OURS) and path.name not in keep:
            path.unlink(missing_ok=True)


# -- reading -------------------------------------------------------------------------------------


def is_index(path: str | os.PathLike[str]) -> bool:
    """Whether a directory holds an index, sound or not."""
    return (Path(path) / MANIFEST_NAME).is_file()


def read_generation(path: str | os.PathLike[str]) -> str:
    """Return the generation of the index in a directory, which is new with every save.

    Raises
    ------
    StorageError
        There is no index, or its manifest cannot be read.
    """
    _require_index(Path(path))
    with storage_errors(f"cannot read the index {path}"):
        return read_manifest(Path(path)).generation


def read_manifest(directory: Path) -> Manifest:
    """Read and check the manifest alone."""
    path = directory / MANIFEST_NAME
    return manifests.from_bytes(path.read_bytes(), str(path))


def _require_index(directory: Path) -> None:
    if not is_index(directory):
        raise StorageError(
            f"{directory} holds no index: there is no {MANIFEST_NAME}",
            hint="check the path, or build an index there",
        )


def load(directory: Path, *, mmap: bool) -> tuple[Snapshot, Manifest]:
    """Read an index. A save in between is no trouble: then the new state is read."""
    _require_index(directory)
    with storage_errors(f"cannot read the index {directory}"):
        for _ in range(_RETRIES):
            manifest = read_manifest(directory)
            try:
                return _open(directory, manifest, mmap), manifest
            except FileNotFoundError as error:
                # Removed by a save since the manifest was read, unless it is the same still.
                if read_manifest(directory).generation == manifest.generation:
                    raise CorruptIndexError(f"{error.filename} is missing") from error
    raise StorageError(f"{directory} changes faster than it can be read", hint="try again")


def _open(directory: Path, manifest: Manifest, mmap: bool) -> Snapshot:
    views = []
    for record in manifest.segments:
        path = directory / record.file
        try:
            segment = _open_segment(path, record, manifest, mmap)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptIndexError(f"{path}: {error!r}") from error
        view = View(segment)
        if record.removed is not None:
            removed = _read_removed(directory / record.removed.file, record)
            view = View(segment, removed, record.removed.n_items, record.removed.uid)
        views.append(view)
    tree = build_tree(views, manifest.shape)
    snapshot = Snapshot(
        tuple(views), tree, manifest.shape, manifest.dim, manifest.with_labels, manifest.next_id
    )
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
        check.section(name)
    problems = structure_problems(segment, manifest.shape.n_buckets, manifest.dim)
    if (segment.labels is not None) != manifest.with_labels:
        problems.append("labels are not as the manifest says")
    if segment.n_entries != record.n_entries:
        problems.append(f"{segment.n_entries} entries are not as the manifest says")
    if arrays["blocks"].shape != segment.buckets.shape:
        problems.append("there must be one checksum per bucket")
    if problems:
        raise CorruptIndexError(f"{path}: {'; '.join(problems)}")
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


# -- verifying ------------------------------------------------------------------------------------


def problems_of(snapshot: Snapshot, directory: Path | None) -> list[str]:
    """Read all of the state in use and the manifest of where it is stored; list what is wrong."""
    problems: list[str] = []
    if directory is not None:
        try:
            names = read_manifest(directory).files()
            problems += [f"{directory / n} is missing" for n in names if not _exists(directory, n)]
        except OSError as error:
            problems.append(f"{directory}: the manifest cannot be read: {error.strerror}")
        except StorageError as error:
            problems.append(str(error))
    all_ids = [np.empty(0, dtype=np.int64)]
    for number, view in enumerate(snapshot.views):
        segment, where = view.segment, f"segment {number}"
        if isinstance(segment.check, StoredCheck):
            where = str(segment.check.path)
            damage = segment.check.problems(segment)
            problems += damage
            if damage:
                continue
        faults = structure_problems(segment, snapshot.shape.n_buckets, snapshot.dim)
        problems += [f"{where}: {p}" for p in faults or content_problems(view)]
        all_ids.append(np.unique(segment.ids[view.live_entries()]))
    ids = np.concatenate(all_ids)
    if len(np.unique(ids)) != len(ids):
        problems.append("an id is in several segments")
    if len(ids) and (ids.min() < 0 or ids.max() >= snapshot.next_id):
        problems.append(f"ids must be in 0..{snapshot.next_id - 1}")
    return problems


def _exists(directory: Path, name: str) -> bool:
    return (directory / name).exists()
