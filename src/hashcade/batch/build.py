"""``build_table``: the stages of a build, and what is left of them when it is stopped."""

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
    damage_named,
    make_run,
    merge_buckets,
    merged_path,
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
# A part is in memory about so many times at once: as it is read, encoded, copied and sorted.
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
    """Build a table from shards of Parquet that need not fit into memory.

    The table is the same, byte for byte, however many workers there are and however much memory.
    A build that was stopped, in whatever way, is resumed when it is called again: what is done
    stays in ``OUTPUT.building`` beside the output. The table appears when it is complete.

    Parameters
    ----------
    model
        Directory of a stored model for embeddings, or of a table.
    shards
        Files, patterns, directories and addresses of fsspec, see :func:`find_shards`.
    items, labels, ids, payload
        Columns, as for :func:`load_parquet`; by default the labels of the column ``label``, if
        there is one, and ids from 0 on in the order of the names of the shards and their rows.
        An item whose label is null has none.
    metric, place
        As for :class:`HashTable`.
    workers
        Number of processes; 1 works in this one (by default, and on Ray as many as it has cores).
        Each encodes in one thread.
    memory
        Bytes for the data that all workers have in memory at once. A process takes some 200 MB
        for itself besides.
    ray
        Run the tasks on Ray (extra ``ray``): ``"auto"`` for the cluster of this machine, or one
        that is started, or an address. Shards, model and output are on disks that all nodes share.
    force
        Replace a table at ``output``.
    progress
        Called with the name of a stage, how much of it is done, and how much there is.

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
    _check_output(target, work, force)
    with storage_errors(f"cannot write {work}"):
        (work / "runs").mkdir(parents=True, exist_ok=True)
    with writer_lock(work), worker_pool(workers, ray) as pool:
        share = memory // pool.workers
        report = progress or (lambda stage, done, total: None)
        columns = ShardColumns(items, labels, ids).resolved(addresses[0], payload)
        tasks = [Task(read_shard_info, (address, columns)) for address in addresses]
        found = _run(pool.run, tasks, "looking at shards", report)
        infos = [found[number] for number in range(len(tasks))]
        job = _job(work, fingerprint, item_shape[0], infos, columns, metric, place)
        row_bytes = max(info.row_bytes for info in infos) + 4 * item_shape[0]
        rows = part_rows(share // _COPIES_OF_PART, row_bytes)
        job = Job(**{**vars(job), "part_rows": rows}).begin()
        generation = _finished(job, target)
        if generation is None:
            copy_model(source, job.table / MODEL_DIR)
            generation = _build(job, pool.run, share, report)
        _put(job, target, generation, force)
    return HashIndex.load(target / INDEX_DIR).stats(quick=True)


def _build(job: Job, run: Run, share: int, report: OnProgress) -> str:
    """Make the table in the work directory, as far as it is not there, and return its generation.

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
    with damage_named(indexes):
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
    replace_file(job.work / "finished", generation)
    return generation


def _run(
    run: Run, tasks: list[Task], stage: str, report: OnProgress, total: int | None = None
) -> dict[int, Any]:
    """Run tasks, and return results by their places; ``total`` counts what was done before."""
    total = sum(task.size for task in tasks) if total is None else total
    done = total - sum(task.size for task in tasks)
    place = {id(task): number for number, task in enumerate(tasks)}
    results = {}
    report(stage, done, total)
    for task, result in run(tasks):
        results[place[id(task)]] = result
        done += task.size
        report(stage, done, total)
    return results


def _job(
    work: Path, fingerprint: str, item_size: int, infos: list[ShardInfo], columns: ShardColumns,
    metric: str, place: str,
) -> Job:  # fmt: skip
    """Put together what the shards say; refuse what does not fit together."""
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
            plain = label_array(info.labels, len(info.labels)).tolist() if info.labels else []
        except ValueError as error:
            raise DataError(f"{info.address}: {error}") from None
        for label in plain:
            if label is not None:
                classes.setdefault(label, info.address)
    types = {type(label): (label, address) for label, address in reversed(classes.items())}
    if len(types) > 1:
        (one, first), (other, second) = types.values()
        raise DataError(
            f"{columns.labels} has {one!r} in {first} and {other!r} in {second}, must be all "
            "integers or all text"
        )
    shards = tuple(Shard(*info[:4]) for info in infos)
    id_kind = infos[0].id_kind or "int"
    settings = (columns, id_kind, tuple(classes), metric, place, 0)
    return Job(work, fingerprint, item_size, shards, *settings)


def _check_output(target: Path, work: Path, force: bool) -> None:
    """Raise before the work begins if the table could not be put there."""
    restore_directory(target)
    _refuse_existing(target, force or (work / "finished").exists())


def _refuse_existing(target: Path, force: bool) -> None:
    refuse_foreign(target)
    if (target / DATABASE).is_file() and not force:
        hint = "replace it with force=True (--force), or choose another path"
        raise StorageError(f"{target} exists", hint=hint)


def _finished(job: Job, target: Path) -> str | None:
    """The generation of a table that is complete in the work directory, or in its place."""
    path = job.work / "finished"
    if not path.exists():
        return None
    generation = read_file(path).decode()
    if job.table.is_dir() or _has(target, generation):
        return generation
    shutil.rmtree(job.work / "merged", ignore_errors=True)  # it was there, and was removed
    path.unlink()
    return None


def _has(target: Path, generation: str) -> bool:
    index = target / INDEX_DIR
    return is_index(index) and read_generation(index) == generation


def _put(job: Job, target: Path, generation: str, force: bool) -> None:
    """Let the table take its place, unless it has, and remove the work directory."""
    shutil.rmtree(job.work / "runs", ignore_errors=True)
    if not _has(target, generation):
        _refuse_existing(target, force)
        index = target / INDEX_DIR
        with (
            storage_errors(f"cannot write {target}"),
            writer_lock(index) if index.is_dir() else nullcontext(),
        ):
            put_directory(job.table, target)
    shutil.rmtree(job.work, ignore_errors=True)
