"""Threads that work is done in, which do not keep the process from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Workers:
    """A pool of daemon threads: those of ``concurrent.futures`` are waited for at the end."""

    def __init__(self, n_threads: int, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
        self._queue = queue.SimpleQueue()
        self._n_threads = n_threads
        for number in range(n_threads):
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do some work when a thread is free."""
        future: Future[T] = Future()
        self._queue.put((work, future))
        return future

    def close(self) -> None:
        """Take no more work; what has begun is not waited for."""
        for _ in range(self._n_threads):
            self._queue.put(None)

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            work, future = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            del task, work, future  # results are not kept until the next one
