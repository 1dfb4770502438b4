"""Where a reproduction stands, and how long it will take, on stderr."""

from __future__ import annotations

import sys
import time


class Progress:
    """Counts what is done in expected seconds, and scales the rest by how it went so far.

    Parameters
    ----------
    expected
        Seconds that all jobs are expected to take.
    verbose
        Whether to say anything.
    """

    def __init__(self, expected: float, n_jobs: int, *, verbose: bool = True) -> None:
        self._left = expected
        self._done = self._spent = 0.0
        self._n_jobs, self._number = n_jobs, 0
        self._verbose = verbose
        self._start = time.monotonic()

    def begin(self, name: str) -> None:
        """A job begins."""
        self._number += 1
        self._start = time.monotonic()
        self.say(f"[{self._number}/{self._n_jobs}] {name}, {duration(self.seconds_left())} left")

    def end(self, expected: float) -> None:
        """The job ended that was expected to take so many seconds."""
        self._spent += time.monotonic() - self._start
        self._done += expected
        self._left = max(0.0, self._left - expected)

    def seconds_left(self) -> float:
        """Expected seconds of what is left, by the pace so far."""
        pace = self._spent / self._done if self._done > 0 else 1.0
        return self._left * pace

    def say(self, text: str) -> None:
        """Print a line."""
        if self._verbose:
            print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``2 h 05 min``.

    Examples
    --------
    >>> duration(44.6), duration(720), duration(7500)
    ('45 s', '12 min', '2 h 05 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
