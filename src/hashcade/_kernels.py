"""Compiled code: one decorator, and one line on stderr when compilation takes time.

Kernels are compiled when they are first called and cached beside their source, so a process
compiles only what no process before it has. ``hashcade warmup`` does it beforehand.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
from numba.core import event

__all__ = ["compilation_seconds", "helper", "inner_kernel", "kernel", "usable_cores"]

_OPTIONS = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}

# (modification time, size) of each source file with kernels, in the order of import.
_sources: dict[str, tuple[float, int]] = {}


def kernel(**options: Any) -> Callable[[Any], Any]:
    """``numba.njit`` with a cache on disk, without the GIL, and with numpy's rules for division.

    A cached kernel contains those that it calls. numba looks at the source file of the outermost
    alone; here a kernel is compiled anew as well after a change of a file of the same package
    that was imported before it.
    """

    def decorate(function: Any) -> Any:
        dispatcher: Any = numba.njit(**{**_OPTIONS, "cache": True, **options})(function)
        package = os.path.dirname(_note_source(function))
        file = getattr(dispatcher._cache, "_cache_file", None)
        if file is not None:
            file._source_stamp = tuple(
                stamp for path, stamp in _sources.items() if os.path.dirname(path) == package
            )
        return dispatcher

    return decorate


def helper(**options: Any) -> Callable[[Any], Any]:
    """A function that only kernels call: without an entry from Python, which takes time to compile.

    It needs no cache of its own, because it becomes a part of the kernels that call it.
    """

    def decorate(function: Any) -> Any:
        _note_source(function)
        return numba.njit(**{**_OPTIONS, "no_cpython_wrapper": True, **options})(function)

    return decorate


inner_kernel = helper  # the name in hashcade.codes


def _note_source(function: Any) -> str:
    path = str(function.__code__.co_filename)
    if path not in _sources and os.path.exists(path):
        status = os.stat(path)
        _sources[path] = (status.st_mtime, status.st_size)
    return path


@cache
def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Announce(event.Listener):
    """Says once per process that compilation has begun, and adds up how long it took."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        self._since = 0.0
        self._said = False

    def on_start(self, event: Any) -> None:
        if not _is_ours(event):
            return
        if not self._said:
            self._said = True
            print(
                "hashcade: compiling its kernels, once per installation, about 10 s "
                "('hashcade warmup' does it beforehand)",
                file=sys.stderr,
                flush=True,
            )
        if self._depth == 0:
            self._since = time.perf_counter()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        if not _is_ours(event):
            return
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._since


def _is_ours(occurrence: Any) -> bool:
    function = getattr(occurrence.data.get("dispatcher"), "py_func", None)
    return str(getattr(function, "__module__", "")).startswith("hashcade")


_announce = _Announce()
event.register("numba:compile", _announce)  # type: ignore[no-untyped-call]


def compilation_seconds() -> float:
    """Seconds that this process has spent on compiling kernels."""
    return _announce.seconds
