"""Where the tasks of a build run: in this process, in several, or on Ray."""

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

_RETRIES = 5  # of a task whose worker was killed, on Ray
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Task(NamedTuple):
    """A call of a function of this package; ``size`` is for the progress alone."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    size: int = 1


Run = Callable[[Sequence[Task]], Iterator[tuple[Task, Any]]]  # gives results as they come


class Pool(NamedTuple):
    """What runs tasks, so many at a time."""

    run: Run
    workers: int


@contextmanager
def worker_pool(workers: int | None, ray: str | None) -> Iterator[Pool]:
    """Give what runs tasks; all of its processes have ended afterwards.

    ``workers=None`` is 1, or on Ray as many as it has cores.
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
    # Not forked: threads of libraries do not survive it.
    context = multiprocessing.get_context("spawn")
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # of each process: there is one per core
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
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end_with_parent() -> None:
    """Let a worker end when the process that started it was killed: it would wait forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="hashcade-parent", daemon=True).start()


@contextmanager
def _on_ray(given: int | None, address: str) -> Iterator[Pool]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    library: Any = require_extra("ray", "ray")
    started = not library.is_initialized()
    if started:
        try:
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
            library.init(address=None if address == "auto" else address, **options)
        except (ConnectionError, OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"ray={address!r}: no connection: {reason}") from None
    workers = given or max(1, int(library.cluster_resources().get("CPU", 1)))

    def run(tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        waiting = list(reversed(tasks))
        running: dict[Any, Task] = {}
        while waiting or running:
            while waiting and len(running) < workers:  # no more at a time than memory is for
                task = waiting.pop()
                remote = library.remote(num_cpus=1, max_retries=_RETRIES)(task.function)
                running[remote.remote(*task.arguments)] = task
            (done, *_), _ = library.wait(list(running))
            try:
                result = library.get(done)
            except library.exceptions.RayTaskError as error:
                raise error.cause from None
            except library.exceptions.RayError as error:
                hint = "run the same command again to continue"
                raise StorageError(f"a worker of Ray was lost: {error}", hint=hint) from None
            yield running.pop(done), result

    try:
        yield Pool(run, workers)
    finally:
        if started:
            library.shutdown()
