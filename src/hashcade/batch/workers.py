"""Executors for the tasks of a build: this process, a pool of processes, or Ray."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, NamedTuple

from hashcade._extras import require_extra
from hashcade.errors import ConfigError, StorageError

_RETRIES = 5  # on Ray, of a task whose worker was killed
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Task(NamedTuple):
    """A function call; ``size`` is its share of the progress."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    size: int = 1


Run = Callable[[Sequence[Task]], Iterator[tuple[Task, Any]]]  # yields results as they are completed


class Pool(NamedTuple):
    """An executor with a number of workers."""

    run: Run
    workers: int


@contextmanager
def worker_pool(workers: int | None, ray: str | None) -> Iterator[Pool]:
    """Yield an executor, whose processes are stopped at the end.

    ``workers=None`` is 1, or on Ray the number of its cores.
    """
    if ray is not None:
        with _on_ray(workers, ray) as pool:
            yield pool
    elif workers is None or workers == 1:
        yield Pool(_in_this_process, 1)
    else:
        with _in_processes(workers) as run:
            yield Pool(run, workers)


def _in_this_process(tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
    for task in tasks:
        yield task, task.function(*task.arguments)


@contextmanager
def _in_processes(workers: int) -> Iterator[Run]:
    # Not forked: threads of libraries do not survive a fork.
    context = multiprocessing.get_context("spawn")
    environment = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # per process: there is one process per core
    pool = ProcessPoolExecutor(workers, context, initializer=_end_with_parent)

    def run(tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        futures = {pool.submit(task.function, *task.arguments): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            hint = "run the same command again to continue, with less memory or fewer workers"
            raise StorageError("a worker was killed, for want of memory?", hint=hint) from None

    try:
        yield run
    finally:
        pool.shutdown(cancel_futures=True)
        for name, value in environment.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end_with_parent() -> None:
    """Stop a worker when its parent process was killed; it would wait forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="hashcade-parent", daemon=True).start()


@contextmanager
def _on_ray(n_workers: int | None, address: str) -> Iterator[Pool]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    library: Any = require_extra("ray", "ray")
    is_ours = not library.is_initialized()
    if is_ours:
        try:
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
            library.init(address=None if address == "auto" else address, **options)
        except (ConnectionError, OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"ray={address!r}: no connection: {reason}") from None
    workers = n_workers or max(1, int(library.cluster_resources().get("CPU", 1)))

    def run(tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        waiting = list(reversed(tasks))
        running: dict[Any, Task] = {}
        while waiting or running:
            while waiting and len(running) < workers:  # the memory limit is divided by workers
                task = waiting.pop()
                remote = library.remote(num_cpus=1, max_retries=_RETRIES)(task.function)
                running[remote.remote(*task.arguments)] = task
            (ready, *_), _ = library.wait(list(running))
            try:
                result = library.get(ready)
            except library.exceptions.RayTaskError as error:
                raise error.cause from None
            except library.exceptions.RayError as error:
                hint = "run the same command again to continue"
                raise StorageError(f"a worker of Ray was lost: {error}", hint=hint) from None
            yield running.pop(ready), result

    try:
        yield Pool(run, workers)
    finally:
        if is_ours:
            library.shutdown()
