"""An index on disk: atomic writes, and reads that are checked.

::

    index/
        manifest.json        the files of the index, with a checksum of itself
        segment-<uid>.bin    arrays of one segment, each at a multiple of 64 bytes
        removed-<uid>.bin    one bit per removed entry of a segment
        lock                 held by a writer, or by a service while it runs

Files other than the manifest are written once, flushed to the disk, and never changed. The manifest
is written beside the old one and renamed over it, which is the moment at which the state changes.
Managed files that are not in the manifest were left by an interrupted writer, and the next one
removes them; foreign files are left alone. A section of a segment is one array; its bytes, and its
checksum, include the padding to a multiple of 64. Opening an index checks the manifest
(``manifest.py``), the length of every file, and the arrays of the structure; the block of a bucket
is checked when it is first read (:class:`StoredCheck`). Only regular files are read, no links.
"""

from __future__ import annotations

import math
import mmap as mmap_module
import os
import re
import zlib
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from hashcade._io import (
    LOCK_NAME,
    open_regular,
    storage_errors,
    sync_directory,
    write_file,
    writer_lock,
)
from hashcade.errors import CorruptIndexError, StorageError
from hashcade.index import checksums
from hashcade.index.checksums import StoredCheck
from hashcade.index.manifest import ALIGNMENT, MANIFEST_NAME, Manifest, Record, read_manifest
from hashcade.index.segment import Segment, View
from hashcade.index.snapshot import Snapshot, empty_snapshot

_STRUCTURE = ("buckets", "offsets", "blocks")  # arrays that are checked when an index is opened
# Names of files that a save writes, and may remove.
_MANAGED = re.compile("(segment|removed)-[0-9a-f]{32}[.]bin|manifest-[0-9a-f]{32}[.]tmp")


def new_generation() -> str:
    """Return a new generation, which names a state of an index on disk, for ``HashIndex.save``."""
    return uuid4().hex


def save(
    directory: Path, snapshot: Snapshot, generation: str, expected: frozenset[str] | None,
    *, lock_held: bool = False,
) -> None:  # fmt: skip
    """Write a snapshot as a new generation that replaces an ``expected`` one, or any if None."""
    with storage_errors(f"cannot write the index {directory}"):
        if not directory.is_dir():
            directory.mkdir(parents=True)
            sync_directory(directory.parent)
        elif not is_index(directory):
            names = [path.name for path in directory.iterdir() if path.name != LOCK_NAME]
            if foreign := [name for name in names if not _MANAGED.fullmatch(name)]:
                message = f"{directory} is not an index and not empty: {min(foreign)}"
                raise StorageError(message, hint="choose another path")
        with nullcontext() if lock_held else writer_lock(directory):
            try:
                current = read_manifest(directory)
            except (FileNotFoundError, CorruptIndexError):
                current = None  # nothing to reuse
            if expected is not None and (current is None or current.generation not in expected):
                message = f"{directory} was changed by another writer since it was read"
                raise StorageError(message, hint="load it again, or save elsewhere")
            new_files: list[Path] = []
            try:
                manifest = _write_files(directory, snapshot, generation, current, new_files)
                temporary = directory / f"manifest-{uuid4().hex}.tmp"
                new_files.append(temporary)
                write_file(temporary, [manifest.to_bytes()])
                sync_directory(directory)
                os.replace(temporary, directory / MANIFEST_NAME)
            except BaseException:
                for path in new_files:
                    path.unlink(missing_ok=True)
                raise
            sync_directory(directory)
            files = manifest.files()
            for path in directory.iterdir():
                if _MANAGED.fullmatch(path.name) and path.name not in files and not path.is_dir():
                    path.unlink(missing_ok=True)


def _write_files(
    directory: Path, snapshot: Snapshot, generation: str, current: Manifest | None,
    new_files: list[Path],
) -> Manifest:  # fmt: skip
    """Write the files that are missing; their paths are first appended to ``new_files``."""

    def write(kind: str, uid: str, parts: list[Any]) -> Record:
        path = directory / f"{kind}-{uid}.bin"
        new_files.append(path)
        write_file(path, parts)
        return {"file": path.name, "uid": uid, "bytes": path.stat().st_size}

    def is_stored(record: Record | None, uid: str) -> bool:
        if record is None or record["uid"] != uid:
            return False
        path = directory / record["file"]
        return path.exists() and bool(path.stat().st_size == record["bytes"])

    old_records = {record["uid"]: record for record in current.segments} if current else {}
    records = []
    for view in snapshot.views:
        segment = view.segment
        record = old_records.get(segment.uid, {"uid": None, "removed": None})
        removed = record["removed"]
        if not is_stored(record, segment.uid):
            sections, parts = _sections(segment)
            counts = (segment.n_items, segment.n_entries, segment.max_norm)
            record = segment_record(write("segment", segment.uid, parts), *counts, sections)
        if len(view.removed) == 0:
            removed = None
        elif not is_stored(removed, view.removed_uid):
            bits = np.packbits(view.removed).tobytes()
            removed = write("removed", view.removed_uid, [bits])
            removed |= {"crc32": zlib.crc32(bits), "n_items": view.n_removed_items}
        records.append({**record, "removed": removed})
    return Manifest(
        generation, snapshot.shape, snapshot.dim, snapshot.with_labels, snapshot.next_id,
        snapshot.n_items, records, snapshot.unit_length, snapshot.first_pass, snapshot.dtype,
    )  # fmt: skip


def _sections(segment: Segment) -> tuple[Record, list[Any]]:
    """Return the sections of a segment file, and their bytes."""
    segment.check.blocks()  # damaged data must not get a new checksum
    arrays = segment.arrays
    crcs = [checksums.block_crc(arrays, row) for row in range(len(segment.buckets))]
    arrays["blocks"] = np.array(crcs, dtype=np.uint32)
    kinds = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    sections = place_sections(kinds)
    parts: list[Any] = []
    for name, section in sections.items():
        data = np.ascontiguousarray(arrays[name], section["dtype"])
        padding = bytes(section["bytes"] - data.nbytes)
        section["crc32"] = zlib.crc32(padding, zlib.crc32(data.data))
        parts += [data, padding]
    return sections, parts


def place_sections(kinds: Mapping[str, tuple[Any, tuple[int, ...]]]) -> Record:
    """Lay out arrays of these dtypes and shapes in the file of a segment."""
    sections: Record = {}
    offset = 0
    for name, (dtype_like, shape) in kinds.items():
        dtype = np.dtype(dtype_like).newbyteorder("<")
        size = math.prod(shape) * dtype.itemsize
        size += -size % ALIGNMENT
        sections[name] = {"offset": offset, "bytes": size, "dtype": dtype.str, "shape": list(shape)}
        offset += size
    return sections


def segment_record(
    file: Record, n_items: int, n_entries: int, max_norm: float, sections: Record
) -> Record:
    """Record of a segment in the manifest; ``file`` has its name, uid and length."""
    return dict(file, n_items=n_items, n_entries=n_entries, max_norm=max_norm, sections=sections)


def is_index(path: str | os.PathLike[str]) -> bool:
    """Whether a directory holds an index, damaged or not."""
    return (Path(path) / MANIFEST_NAME).is_file()


def read_generation(path: str | os.PathLike[str]) -> str:
    """Return the generation of the index in a directory, which is new with every save."""
    _require_index(Path(path))
    with storage_errors(f"cannot read the index {path}"):
        return read_manifest(Path(path)).generation


def foreign_files(directory: Path) -> list[Path]:
    """Files in the directory of an index that were not written by this package."""
    managed = {MANIFEST_NAME, LOCK_NAME}
    entries = [path for path in directory.iterdir() if path.name not in managed]
    return sorted(p for p in entries if p.is_dir() or not _MANAGED.fullmatch(p.name))


def _require_index(directory: Path) -> None:
    if not is_index(directory):
        message = f"{directory} holds no index: there is no {MANIFEST_NAME}"
        raise StorageError(message, hint="check the path, or build an index there")


def load(directory: Path, *, mmap: bool) -> tuple[Snapshot, Manifest]:
    """Read an index. If it is saved meanwhile, the new state is read."""
    _require_index(directory)
    with storage_errors(f"cannot read the index {directory}"):
        for _ in range(1000):
            manifest = read_manifest(directory)
            try:
                return _open(directory, manifest, mmap), manifest
            except FileNotFoundError as error:
                # Removed by a save since the manifest was read, unless the generation is the same.
                if read_manifest(directory).generation == manifest.generation:
                    raise CorruptIndexError(f"{error.filename} is missing") from error
    raise StorageError(f"{directory} changes faster than it can be read", hint="try again")


def _open(directory: Path, manifest: Manifest, mmap: bool) -> Snapshot:
    views, path = [], directory
    try:
        for record in manifest.segments:
            path = directory / record["file"]
            view = View(_open_segment(path, record, manifest, mmap))
            if record["removed"] is not None:
                path = directory / record["removed"]["file"]
                with open_regular(path, follow_links=False) as file:
                    data, n = file.read(), view.segment.n_entries
                if len(data) != (n + 7) // 8 or zlib.crc32(data) != record["removed"]["crc32"]:
                    raise CorruptIndexError(f"{path} is damaged: its checksum or length is wrong")
                removed = np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=n)
                n_removed, uid = record["removed"]["n_items"], record["removed"]["uid"]
                view = View(view.segment, removed, n_removed, uid)
            views.append(view)
        empty = empty_snapshot(
            manifest.shape, manifest.dim, manifest.with_labels, manifest.unit_length,
            manifest.first_pass, manifest.dtype,
        )  # fmt: skip
        return empty.with_views(views, manifest.next_id)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndexError(f"{path}: {error!r}") from error


def _open_segment(path: Path, record: Record, manifest: Manifest, mmap: bool) -> Segment:
    with open_regular(path, follow_links=False) as file:
        size = os.fstat(file.fileno()).st_size
        if size != record["bytes"]:
            raise CorruptIndexError(f"{path} has {size} bytes, must have {record['bytes']}")
        mapped = mmap_module.mmap(file.fileno(), 0, access=mmap_module.ACCESS_READ)
    raw = np.frombuffer(mapped, dtype=np.uint8)
    if not mmap:
        raw = raw.copy()
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, section in record["sections"].items():
        offset, dtype = section["offset"], np.dtype(section["dtype"])
        n_bytes = math.prod(section["shape"]) * dtype.itemsize
        array = raw[offset : offset + n_bytes].view(dtype).reshape(section["shape"])
        arrays[name] = array if dtype.isnative else array.astype(dtype.newbyteorder("="))
        if name in _STRUCTURE:  # changes to the file must not change which addresses kernels read
            arrays[name] = arrays[name].copy()
    check = StoredCheck(
        path, record, raw, mapped if mmap else None, arrays, manifest.next_id, manifest.unit_length
    )
    for name in _STRUCTURE:
        check.section(name)
    segment = Segment(
        arrays["vectors"], arrays["ids"], arrays.get("labels"), arrays.get("items"),
        arrays["buckets"], arrays["offsets"], record["n_items"], record["max_norm"],
        record["uid"], check, arrays.get("codes"), arrays.get("code_bounds"),
    )  # fmt: skip
    n_entries, n_buckets = record["n_entries"], manifest.shape.n_buckets
    problems = checksums.structure_problems(arrays, n_entries, manifest.dim, n_buckets)
    if ("labels" in arrays) != manifest.with_labels:
        problems.append("labels are not as the manifest says")
    if arrays["vectors"].dtype != manifest.dtype:
        problems.append(f"vectors must be {manifest.dtype} as dtype says")
    for name in ("codes", "code_bounds"):
        if (name in arrays) != (manifest.first_pass is not None):
            problems.append(f"{name} must be there as first_pass says")
    if ("items" in arrays) != (manifest.shape.sparsity > 1):
        problems.append("item numbers are not as the sparsity says")
    if "items" not in arrays and record["n_items"] != n_entries:
        problems.append(f"n_items={record['n_items']} must be n_entries={n_entries}")
    if problems:
        raise CorruptIndexError(f"{path}: {'; '.join(problems)}")
    if not mmap:
        for problem in check.all_problems():
            raise CorruptIndexError(problem)
        check.checked[:] = True
    return segment


def problems_of(snapshot: Snapshot, directory: Path | None) -> list[str]:
    """Read the whole snapshot, and the manifest of its directory; list all problems."""
    problems: list[str] = []
    if directory is not None:
        try:
            paths = [directory / name for name in read_manifest(directory).files()]
            problems += [f"{path} is missing" for path in paths if not path.exists()]
        except (OSError, StorageError) as error:
            problems.append(f"{directory}: the manifest cannot be read: {error}")
    all_ids = [np.empty(0, dtype=np.int64)]
    for number, view in enumerate(snapshot.views):
        segment, where = view.segment, f"segment {number}"
        if isinstance(segment.check, StoredCheck):
            where = str(segment.check.path)
            if damage := segment.check.all_problems():
                problems += damage
                continue
        segment.check.blocks()
        n_entries, n_buckets = segment.n_entries, snapshot.shape.n_buckets
        faults = checksums.structure_problems(segment.arrays, n_entries, snapshot.dim, n_buckets)
        problems += [f"{where}: {p}" for p in faults or checksums.content_problems(view)]
        all_ids.append(np.unique(segment.ids[view.live_entries()]))
    ids = np.concatenate(all_ids)
    if len(np.unique(ids)) != len(ids):
        problems.append("an id is in several segments")
    if len(ids) and (ids.min() < 0 or ids.max() >= snapshot.next_id):
        problems.append(f"ids must be in 0..{snapshot.next_id - 1}")
    return problems
