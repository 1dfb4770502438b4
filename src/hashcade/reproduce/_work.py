"""What rows share and what takes long to make: kept in a folder, found again by its settings.

::

    work/
        models/base-1f0c.../       a trained model
        models/base-1f0c....time   seconds of processor time that its training took
        runs/base-1f0c.../         checkpoints of one that is being trained
        runs/base-1f0c....lock     held by the process that trains it
        arrays/vectors-77ab....npy
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

from hashcade.errors import StorageError
from hashcade.learn._hasher import Hasher
from hashcade.report._row import fingerprint


class WorkFolder:
    """A folder for intermediate results. It may be removed at any time, at the price of time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def hasher(
        self, name: str, settings: Mapping[str, Any], fit: Callable[[Path], Hasher]
    ) -> Hasher:
        """A trained hasher: read if it is there, else trained and kept.

        If another process is training it, this one waits, and takes what the other has made.

        Parameters
        ----------
        name
            Beginning of the folder's name.
        settings
            All that it depends on.
        fit
            Called with the folder for checkpoints; one that was broken off goes on there.
        """
        label = f"{name}-{fingerprint(settings)}"
        place, run_dir = self.path / "models" / label, self.path / "runs" / label
        if place.is_dir():
            return Hasher.load(place)
        with _alone(run_dir.with_name(f"{label}.lock")):
            if place.is_dir():  # made by the one we waited for
                return Hasher.load(place)
            before, start = self.training_seconds(name, settings), time.process_time()
            try:
                hasher = fit(run_dir)
            finally:  # what a run that was broken off has spent is counted too
                place.parent.mkdir(parents=True, exist_ok=True)
                spent = before + time.process_time() - start
                place.with_name(f"{label}.time").write_text(f"{spent:.1f}\n", encoding="utf-8")
            hasher.save(place)
            shutil.rmtree(run_dir, ignore_errors=True)
        return hasher

    def training_seconds(self, name: str, settings: Mapping[str, Any]) -> float:
        """Processor time that training a hasher has taken so far, over all threads."""
        file = self.path / "models" / f"{name}-{fingerprint(settings)}.time"
        return float(file.read_text(encoding="utf-8")) if file.is_file() else 0.0

    def array(
        self, name: str, settings: Mapping[str, Any], compute: Callable[[], npt.NDArray[Any]]
    ) -> npt.NDArray[Any]:
        """An array: read if it is there, else computed and kept."""
        path = self.path / "arrays" / f"{name}-{fingerprint(settings)}.npy"
        if path.is_file():
            try:
                values: npt.NDArray[Any] = np.load(path, allow_pickle=False)
            except (ValueError, EOFError, OSError) as error:
                raise StorageError(f"cannot read {path}: {error}; remove it") from None
            return values
        values = compute()
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f".{path.name}.new-{os.getpid()}")
        try:
            with made.open("wb") as file:
                np.save(file, values, allow_pickle=False)
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
        return values


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Wait until nobody else holds this file, and hold it. A lock ends with its process."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
