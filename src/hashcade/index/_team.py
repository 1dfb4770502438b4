"""Threads that help with a search, and stay awake for a moment after it.

The compiled half is at the end of ``_kernel.py``. A search that finds the board taken by another
search scans alone: then the cores are busy anyway.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from functools import cache

import numpy as np

from hashcade.index._kernel import ATTENDING, BOARD_LENGTH, attend

# Looks at the board before a helper goes to sleep: some ten milliseconds, as long as GNU OpenMP's
# threads wait. Waking up costs a search of a millisecond most of what help would bring.
_PATIENCE = 30_000_000
NO_BOARD = np.zeros(BOARD_LENGTH, dtype=np.int64)  # for kernels that want one and will not look
_CAN_CHOOSE_CORES = hasattr(os, "sched_setaffinity")
_sched_getcpu = getattr(ctypes.CDLL(None), "sched_getcpu", None) if _CAN_CHOOSE_CORES else None


class Team:
    """A board, and the helpers who look at it.

    Parameters
    ----------
    n_helpers
        Threads beside the one that searches. They start with the first call for help.
    """

    def __init__(self, n_helpers: int) -> None:
        self.board = np.zeros(BOARD_LENGTH, dtype=np.int64)
        self.taken = threading.Lock()
        self.n_helpers = n_helpers
        self._bells: list[threading.Event] = []
        self._cores: set[int] = set()  # for helpers

    def call(self) -> None:
        """Wake the helpers who sleep. Whoever calls holds the board, and does not wait."""
        if self.board[ATTENDING] == self.n_helpers:
            return
        if not self._bells:
            for number in range(self.n_helpers):
                bell = threading.Event()
                self._bells.append(bell)
                name = f"hashcade-helper-{number}"
                threading.Thread(target=self._help, args=(bell,), name=name, daemon=True).start()
        self._cores = _other_cores()
        for bell in self._bells:
            bell.set()

    def _help(self, bell: threading.Event) -> None:
        while True:
            bell.wait()
            bell.clear()
            _keep_to(self._cores)
            attend(self.board, _PATIENCE)


def _other_cores() -> set[int]:
    """Return the cores that this thread may use, but for the one that it runs on.

    None where it cannot be told which one that is.
    """
    here = int(_sched_getcpu()) if _sched_getcpu is not None else -1
    return os.sched_getaffinity(0) - {here} if here >= 0 else set()


def _keep_to(cores: set[int]) -> None:
    """Let this thread run on these cores alone, if there are any.

    A thread that is woken up often finds itself on the core of whoever woke it. There the two would
    take turns of milliseconds, and two threads be slower than one.
    """
    if cores:
        with contextlib.suppress(OSError):  # not allowed: slower, not wrong
            os.sched_setaffinity(threading.get_native_id(), cores)


@cache
def team(n_helpers: int) -> Team:
    """Return the team of this size; there is one in a process."""
    return Team(n_helpers)


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=team.cache_clear)
