"""Compiled code: one decorator, and one line on stderr when compilation takes time.

Kernels are compiled when they are first called and cached beside their source, so a process
compiles only what no process before it has. ``hashcade warmup`` does it beforehand.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import event
from numpy.typing import NDArray

__all__ = ["Floats", "Ints", "helper", "kernel", "usable_cores"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def _import_without_scipy() -> None:
    """Import numba's array functions without scipy.linalg, a quarter of the way to a first search.

    numba imports it to see whether a matrix product could be compiled, and once more when one is.
    """
    if "numba.np.arraymath" in sys.modules or importlib.util.find_spec("scipy") is None:
        return
    linalg: Any = importlib.import_module("numba.np.linalg")
    ensure_blas = linalg.ensure_blas
    linalg.ensure_blas = lambda: None
    try:
        arraymath: Any = importlib.import_module("numba.np.arraymath")
        arraymath.ensure_blas = ensure_blas
    finally:
        linalg.ensure_blas = ensure_blas


_import_without_scipy()

_OPTIONS = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


def kernel(**options: Any) -> Callable[[Any], Any]:
    """``numba.njit`` with a cache on disk, without the GIL, and with numpy's rules for division."""

    def compiler(function: Any) -> Any:
        _remove_stale(Path(function.__code__.co_filename).parent)
        return numba.njit(**{**_OPTIONS, "cache": True, **options})(function)

    return compiler


@cache
def _remove_stale(package: Path) -> None:
    """Remove cached kernels that are older than a file of their package.

    numba sees a change in the kernel's own file alone, and would go on with helpers of old.
    """
    with suppress(OSError):  # what cannot be looked at or removed cannot have changed either
        newest = max(file.stat().st_mtime for file in package.glob("*.py"))
        for cached in (package / "__pycache__").glob("*.nb[ic]"):
            if cached.stat().st_mtime < newest:
                cached.unlink(missing_ok=True)


def helper(**options: Any) -> Callable[[Any], Any]:
    """A function that only kernels call: no entry from Python, so less to compile.

    It is cached as a part of the kernels that call it.
    """
    compiler: Callable[[Any], Any] = numba.njit(
        **{**_OPTIONS, "no_cpython_wrapper": True, **options}
    )
    return compiler


@cache
def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Announce(event.Listener):
    """Says once per process that compilation has begun."""

    said = False

    def on_start(self, event: Any) -> None:
        function = getattr(event.data.get("dispatcher"), "py_func", None)
        if not self.said and str(getattr(function, "__module__", "")).startswith("hashcade"):
            self.said = True
            print(
                "hashcade: compiling its kernels, once per installation, about 10 s "
                "('hashcade warmup' does it beforehand)",
                file=sys.stderr,
                flush=True,
            )

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


_announce = _Announce()
event.register("numba:compile", _announce)  # type: ignore[no-untyped-call]
