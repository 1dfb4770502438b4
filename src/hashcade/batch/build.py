"""``build_table``: the stages of a build, which can be resumed after an interruption."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from hashcade._io import (
    put_directory,
    read_file,
    replace_file,
    restore_directory,
    storage_errors,
    writer_lock,
)
from hashcade._validate import checked_choice, checked_count
from hashcade.batch.job import Job, Shard, part_rows
from hashcade.batch.tasks import (
    make_run,
    merge_buckets,
    merged_path,
    run_errors,
    run_info,
    write_items,
)
from hashcade.batch.workers import Run, Task, worker_pool
from hashcade.data import ShardColumns, ShardInfo, find_shards, read_shard_info
from hashcade.errors import ConfigError, DataError, StorageError
from hashcade.index import METRICS, HashIndex, MergePlan, is_index, read_generation
from hashcade.learn import copy_model, model_fingerprint, read_config
from hashcade.store import (
    DATABASE,
    INDEX_DIR,
    MODEL_DIR,
    PLACES,
    Label,
    label_array,
    model_path,
    refuse_foreign,
)

MEMORY = 1 << 30
_FINISHED = "finished"  # in the work directory, once the table in it is complete
# Copies of a part, and of a range, that are in memory at the same time.
_COPIES_OF_PART, _COPIES_OF_RANGE = 6, 4

OnProgress = Callable[[str, int, int], object]


def build_table(
    model: str | os.PathLike[str],
    shards: str | Sequence[str],
    output: str | os.PathLike[str],
    *,
    items: str = "embedding",
    labels: str | None = None,
    ids: str | None = None,
    payload: str | Sequence[str] | None = None,
    metric: str = "euclidean",
    place: str = "label",
    workers: int | None = None,
    memory: int = MEMORY,
    ray: str | None = None,
    force: bool = False,
    progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Build a table from Parquet shards that need not fit into memory.

    The table is the same, byte for byte, for any number of workers and any amount of memory.
    A build that was interrupted is resumed by the same call: finished work stays in
    ``OUTPUT.building`` next to the output. The table appears when it is complete.

    Parameters
    ----------
    model
        Directory of a stored model for embeddings, or of a table.
    shards
        Files, glob patterns, directories and fsspec addresses, see :func:`find_shards`.
    items, labels, ids, payload
        Columns, as for :func:`load_parquet`; by default labels from the column ``label``, if there
        is one, and ids from 0 in the order of the shards' names and rows. An item whose label is
        null has no label.
    metric, place
        As for :class:`HashTable`.
    workers
        Number of processes; 1, the default, runs in this process. On Ray, by default as many as
        it has cores. Each worker encodes in one thread.
    memory
        Bytes for the data of all workers together, in addition to some 200 MB per process.
    ray
        Run the tasks on Ray (extra ``ray``): the address of a cluster, or ``"auto"`` for that of
        this machine, which is started if needed. All nodes must share the disks with shards, model
        and output.
    force
        Replace a table at ``output``.
    progress
        Called with the name of a stage, the amount of work done, and the total.

    Returns the table in numbers, as :meth:`HashIndex.stats` does with ``quick``.
    """
    checked_choice("metric", metric, METRICS)
    checked_choice("place", place, PLACES)
    if checked_count("memory", memory) < 1 << 24:
        raise ValueError(f"memory={memory} must be >= {1 << 24}, bytes")
    source, target = model_path(Path(model)), Path(output)
    target = target.resolve() if target.is_symlink() else target.absolute()
    fingerprint = model_fingerprint(source)
    item_shape = read_config(source)["resolved"]["item_shape"]
    if len(item_shape) != 1:
        raise ConfigError(f"{model} takes images, shards have embeddings")
    addresses = find_shards([shards] if isinstance(shards, str) else list(shards))
    in_memory = [address for address in addresses if address.startswith("memory://")]
    if workers is not None:
        checked_count("workers", workers)
    if in_memory and (ray is not None or workers not in (None, 1)):
        raise ConfigError(f"{in_memory[0]} is in this process alone, must be built with workers=1")
    work = target.with_name(f"{target.name}.building")
    restore_directory(target)
    _refuse_existing(target, force or (work / _FINISHED).exists())  # before the work begins
    with storage_errors(f"cannot write {work}"):
        (work / "runs").mkdir(parents=True, exist_ok=True)
    with writer_lock(work), worker_pool(workers, ray) as pool:
        share = memory // pool.workers
        report = progress or (lambda stage, done, total: None)
        columns = ShardColumns(items, labels, ids).resolved(addresses[0], payload)
        tasks = [Task(read_shard_info, (address, columns)) for address in addresses]
        infos = _run(pool.run, tasks, "looking at shards", report)
        row_bytes = max(info.row_bytes for info in infos) + 4 * item_shape[0]
        rows = part_rows(share // _COPIES_OF_PART, row_bytes)
        job = _job(work, fingerprint, item_shape[0], infos, columns, metric, place, rows).begin()
        generation = _finished_generation(job, target)
        if generation is None:
            copy_model(source, job.table / MODEL_DIR)
            generation = _build(job, pool.run, share, report)
        _move_into_place(job, target, generation, force)
    return HashIndex.load(target / INDEX_DIR).stats(quick=True)


def _build(job: Job, run: Run, share: int, report: OnProgress) -> str:
    """Build the table in the work directory, skipping finished tasks; return its generation.

    ``share`` is the memory of one worker.
    """
    parts = job.parts()
    tasks = [
        Task(make_run, (job, part), part.stop - part.start)
        for part in parts
        if not job.run_path(part).exists()
    ]
    _run(run, tasks, "encoding", report, job.n_items)
    digest = sum(run_info(job, part).digest for part in parts)
    seed = json.dumps(
        [job.content() | {"shards": None}, str(job.catalog().data), digest], sort_keys=True
    ).encode()
    generation, uid = (hashlib.blake2b(seed, digest_size=16, person=p).hexdigest()
                       for p in (b"generation", b"segment"))  # fmt: skip
    indexes = [job.run_path(part) / INDEX_DIR for part in parts]
    with run_errors(indexes):
        plan = MergePlan.of_runs(indexes)
    n_bytes = share // _COPIES_OF_RANGE
    spans = plan.ranges(n_bytes)
    plan.allocate(job.index, uid)
    tasks = [
        Task(merge_buckets, (job, plan, uid, span, n_bytes), span.n_entries)
        for span in spans
        if not merged_path(job, span).exists()
    ]
    if not (job.table / DATABASE).exists():
        tasks.insert(0, Task(write_items, (job, generation), plan.n_items))
    _run(run, tasks, "merging", report, plan.n_entries + plan.n_items)
    sums = [np.frombuffer(read_file(merged_path(job, span)), np.uint32) for span in spans]
    plan.finish(job.index, uid, generation, list(zip(spans, sums, strict=True)))
    replace_file(job.work / _FINISHED, generation)
    return generation


def _run(
    run: Run, tasks: list[Task], stage: str, report: OnProgress, total: int | None = None
) -> list[Any]:
    """Run tasks and return their results in order; ``total`` includes tasks finished earlier."""
    remaining = sum(task.size for task in tasks)
    total = remaining if total is None else total
    done = total - remaining
    results = {}
    report(stage, done, total)
    for task, result in run(tasks):
        results[id(task)] = result
        done += task.size
        report(stage, done, total)
    return [results[id(task)] for task in tasks]


def _job(
    work: Path, fingerprint: str, item_size: int, infos: list[ShardInfo], columns: ShardColumns,
    metric: str, place: str, part_size: int,
) -> Job:  # fmt: skip
    """The job that the shards define; shards that do not match are refused."""
    if sum(info.n_rows for info in infos) == 0:
        raise DataError(f"{infos[0].address}: there are no rows in any shard")
    kinds = {info.id_kind: info.address for info in reversed(infos)}
    if len(kinds) > 1:
        raise DataError(
            f"{columns.ids} has integers in {kinds['int']} and text in {kinds['str']}, "
            "must be of one kind"
        )
    classes: dict[Label, str] = {}
    for info in infos:
        try:
            labels = label_array(info.labels, len(info.labels)).tolist() if info.labels else []
        except ValueError as error:
            raise DataError(f"{info.address}: {error}") from None
        for label in labels:
            if label is not None:
                classes.setdefault(label, info.address)
    types = {type(label): (label, address) for label, address in reversed(classes.items())}
    if len(types) > 1:
        (label, address), (other_label, other_address) = types.values()
        raise DataError(
            f"{columns.labels} has {label!r} in {address} and {other_label!r} in {other_address}, "
            "must be all integers or all text"
        )
    shards = tuple(Shard(*info[:4]) for info in infos)
    id_kind = infos[0].id_kind or "int"
    settings = (columns, id_kind, tuple(classes), metric, place, part_size)
    return Job(work, fingerprint, item_size, shards, *settings)


def _refuse_existing(target: Path, force: bool) -> None:
    refuse_foreign(target)
    if (target / DATABASE).is_file() and not force:
        hint = "replace it with force=True (--force), or choose another path"
        raise StorageError(f"{target} exists", hint=hint)


def _finished_generation(job: Job, target: Path) -> str | None:
    """The generation of a table that is complete, in the work directory or at ``target``."""
    path = job.work / _FINISHED
    if not path.exists():
        return None
    generation = read_file(path).decode()
    if job.table.is_dir() or _has_generation(target, generation):
        return generation
    shutil.rmtree(job.work / "merged", ignore_errors=True)  # the finished table was removed
    path.unlink()
    return None


def _has_generation(target: Path, generation: str) -> bool:
    index = target / INDEX_DIR
    return is_index(index) and read_generation(index) == generation


def _move_into_place(job: Job, target: Path, generation: str, force: bool) -> None:
    """Move the table to ``target``, unless it is already there; remove the work directory."""
    shutil.rmtree(job.work / "runs", ignore_errors=True)
    if not _has_generation(target, generation):
        _refuse_existing(target, force)
        index = target / INDEX_DIR
        with (
            storage_errors(f"cannot write {target}"),
            writer_lock(index) if index.is_dir() else nullcontext(),
        ):
            put_directory(job.table, target)
    # The mark is removed last: a build that is killed here is still known as finished.
    for path in job.work.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != _FINISHED:
            path.unlink()
    shutil.rmtree(job.work, ignore_errors=True)
