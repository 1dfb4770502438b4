"""Intermediate results that several rows share: kept in a folder, found again by their settings.

::

    cache/
        models/base-1f0c.../       a trained model
        models/base-1f0c....time   processor seconds that its training took, and seconds
        runs/base-1f0c.../         checkpoints of one that is being trained
        runs/base-1f0c....lock     held by the process that trains it
        arrays/vectors-77ab....npy, or .npz for several
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.datasets.files import write_npz
from experiments.rows import fingerprint, write_whole
from hashcade.data import read_npz
from hashcade.errors import StorageError
from hashcade.learn import Hasher

Arrays = dict[str, npt.NDArray[Any]]


class Cache:
    """A folder for intermediate results. It may be removed at any time, at the price of time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def hasher(
        self, name: str, settings: Mapping[str, Any], fit: Callable[[Path], Hasher]
    ) -> Hasher:
        """A trained hasher: loaded if it is stored, else trained and stored.

        If another process is training it, this one waits and takes the result. ``fit`` is called
        with the folder for checkpoints, where an interrupted training resumes.
        """
        label = f"{name}-{fingerprint(settings)}"
        model, run_dir = self.path / "models" / label, self.path / "runs" / label
        if model.is_dir():
            return Hasher.load(model)
        with _exclusive(run_dir.with_name(f"{label}.lock")):
            if model.is_dir():  # another process trained it in the meantime
                return Hasher.load(model)
            before = self._times(name, settings)
            start = time.process_time(), time.perf_counter()
            try:
                hasher = fit(run_dir)
            finally:  # the time of an interrupted run counts too
                processor = before[0] + time.process_time() - start[0]
                elapsed = before[-1] + time.perf_counter() - start[1]
                times = f"{processor:.1f} {elapsed:.1f}\n"
                write_whole(model.with_name(f"{label}.time"), times)
            hasher.save(model)
            shutil.rmtree(run_dir, ignore_errors=True)
        return hasher

    def training_seconds(self, name: str, settings: Mapping[str, Any]) -> float:
        """Processor time that training a hasher has taken so far, over all threads."""
        return self._times(name, settings)[0]

    def elapsed_seconds(self, name: str, settings: Mapping[str, Any]) -> float:
        """Time that training a hasher has taken so far, by the clock on the wall."""
        return self._times(name, settings)[-1]

    def _times(self, name: str, settings: Mapping[str, Any]) -> list[float]:
        file = self.path / "models" / f"{name}-{fingerprint(settings)}.time"
        if not file.is_file():
            return [0.0]
        return [float(word) for word in file.read_text(encoding="utf-8").split()]

    def array(
        self, name: str, settings: Mapping[str, Any], compute: Callable[[], npt.NDArray[Any]]
    ) -> npt.NDArray[Any]:
        """An array: loaded if it is stored, else computed and stored."""
        path = self.path / "arrays" / f"{name}-{fingerprint(settings)}.npy"
        if path.is_file():
            try:
                values: npt.NDArray[Any] = np.load(path, allow_pickle=False)
            except (ValueError, EOFError, OSError) as error:
                raise StorageError(f"cannot read {path}: {error}", hint="remove it") from None
            return values
        values = compute()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new-{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                np.save(file, values, allow_pickle=False)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return values

    def arrays(
        self, name: str, settings: Mapping[str, Any], compute: Callable[[], Arrays]
    ) -> Arrays:
        """Arrays by name: loaded if they are stored, else computed and stored."""
        path = self.path / "arrays" / f"{name}-{fingerprint(settings)}.npz"
        if not path.is_file():
            write_npz(path, compute())
        return read_npz(path)


@contextmanager
def _exclusive(file: Path) -> Iterator[None]:
    """Wait for the lock of a file and hold it. A lock ends with its process."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
