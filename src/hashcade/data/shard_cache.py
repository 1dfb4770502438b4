"""Embeddings of many files in one memory-mapped file, written once; writing is resumable."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashcade._io import read_file, replace_file, storage_errors, take_writer_lock
from hashcade.data.arrays import read_npy
from hashcade.data.feature_cache import feature_cache_directory
from hashcade.data.items import AnyPath
from hashcade.errors import IndexLockedError, StorageError

Vectors = NDArray[np.float32]

_WAIT = 0.2  # seconds between attempts to get the lock


def cached_vectors(
    cache: AnyPath | None, key: list[Any], shape: tuple[int, int],
    parts: Callable[[int], Iterable[Vectors]],
) -> Vectors:  # fmt: skip
    """Embeddings of the files that ``key`` names, float32 of ``shape``, in a memory-mapped file.

    ``key`` is the column and the versions of the files, ``parts(i)`` yields the rows of the i-th.
    ``rows.json`` lists the files that are done; what a killed process wrote after is truncated.
    """
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    root = feature_cache_directory() if cache is None else Path(cache).expanduser()
    directory = root / "shards" / digest
    path, progress, n_files = directory / "items.npy", directory / "rows.json", len(key) - 1
    with storage_errors(f"cannot write {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory):
            done = _read_progress(progress)
            if len(done) < n_files:
                _append(path, progress, shape, done, n_files, parts)
    vectors = read_npy(path, mmap=True)
    if vectors.shape != shape or vectors.dtype != np.float32:
        raise StorageError(f"{path} is damaged: it has shape {vectors.shape}", hint="remove it")
    return vectors


def _read_progress(progress: Path) -> list[int]:
    """Number of rows of each file that is done."""
    try:
        done = json.loads(read_file(progress)) if progress.exists() else []
        return [int(n_rows) for n_rows in done]
    except (ValueError, TypeError) as error:
        raise StorageError(f"{progress} is damaged: {error}", hint="remove it") from None


def _append(
    path: Path, progress: Path, shape: tuple[int, int], done: list[int], n_files: int,
    parts: Callable[[int], Iterable[Vectors]],
) -> None:  # fmt: skip
    """Write the rows of the other files; ``done`` has the number of rows of those done."""
    with path.open("r+b" if done else "w+b") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.seek(4 * shape[1] * sum(done), os.SEEK_CUR)
        file.truncate()
        for number in range(len(done), n_files):
            n_rows = 0
            for part in parts(number):
                file.write(np.ascontiguousarray(part, "<f4").data)
                n_rows += len(part)
            file.flush()
            os.fsync(file.fileno())
            done.append(n_rows)
            replace_file(progress, json.dumps(done))


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Wait for other processes, such as the ranks of torchrun: one writes, the others read."""
    handle = None
    while handle is None:
        try:
            handle = take_writer_lock(directory)
        except IndexLockedError:
            time.sleep(_WAIT)
    try:
        yield
    finally:
        os.close(handle)
