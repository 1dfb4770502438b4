"""Compiled code: one decorator, and one line on stderr when compilation takes time.

Kernels are compiled when they are first called and cached beside their source, so a process
compiles only what no process before it has. ``hashcade warmup`` does it beforehand.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numba
from numba.core import event

__all__ = ["compilation_seconds", "inner_kernel", "kernel"]


def kernel(**options: Any) -> Any:
    """``numba.njit`` with a cache on disk, and without the GIL."""
    return numba.njit(**{"cache": True, "nogil": True, **options})


def inner_kernel(**options: Any) -> Any:
    """``kernel`` for a function that only kernels call: no entry from Python, so less to compile.

    It is cached as a part of its callers. numba does not see that a cached kernel has changed
    where the change is in another file: touch the caller's file as well.
    """
    return kernel(
        cache=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", **options
    )


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
