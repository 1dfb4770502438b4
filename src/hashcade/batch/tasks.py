"""The tasks of a build. Each writes its result to disk atomically, and is not repeated."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from heapq import merge
from itertools import chain, islice, pairwise, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hashcade._extras import require_extra
from hashcade._io import new_directory, new_file, open_regular, read_file, replace_file
from hashcade.batch.job import Job, Part
from hashcade.data import ShardRows, read_shard_rows
from hashcade.errors import CorruptIndexError, DataError
from hashcade.index import NO_LABEL, BucketRange, HashIndex, MergePlan
from hashcade.learn import Hasher
from hashcade.store import (
    DATABASE,
    INDEX_DIR,
    MODEL_DIR,
    ItemRow,
    item_rows,
    label_array,
    payload_texts,
    plain_ids,
)

_CHUNK = 1024  # rows per digest, and per pass of the network
_UNKNOWN = -2  # code of a label that the shard did not have at first
_ROWS_FILE = "rows.arrow"
_ROWS = 16_384  # per record batch
_FIELDS = (
    ("number", "int64"), ("id", "string"), ("label", "int64"), ("name", "string"),
    ("crc", "int64"), ("payload", "string"), ("payload_crc", "int64"),
)  # fmt: skip


class RunInfo(NamedTuple):
    """Summary of a run, in ``run.json``."""

    digest: int  # sum over its chunks of rows
    first: int  # smallest item number
    last: int  # largest item number
    rows_crc: int  # checksum of rows.arrow


@lru_cache(maxsize=1)
def _model(path: Path, fingerprint: str) -> Hasher:
    with warnings.catch_warnings():  # about an extra for images, which is not needed here
        warnings.simplefilter("ignore", UserWarning)
        return Hasher.load(path)


# -- runs ------------------------------------------------------------------------------------------


def make_run(job: Job, part: Part) -> None:
    """Encode the rows of a part, and write them sorted by bucket."""
    n, shard = part.stop - part.start, job.shards[part.shard]
    items = np.empty((n, job.item_size), np.float32)
    codes = np.full(n, NO_LABEL, np.int64)
    numbers = part.number + np.arange(n)
    keys: list[str] = []
    texts: list[str | None] = []
    code_of = {label: code for code, label in enumerate(job.classes)}
    span = (part.start, part.stop)
    try:
        for rows in read_shard_rows(
            shard.address, job.columns, *span, dim=job.item_size, row_bytes=shard.row_bytes
        ):
            rows_slice = slice(rows.start - part.start, rows.start - part.start + len(rows.items))
            items[rows_slice] = rows.items
            if rows.labels is not None:
                codes[rows_slice] = _codes(rows, code_of)
            if rows.ids is not None and job.id_kind == "int":
                numbers[rows_slice] = plain_ids(rows.ids)
            elif rows.ids is not None:
                keys += plain_ids(rows.ids)
            if rows.payload is not None:
                texts += payload_texts(rows.payload, len(rows.items))
        hasher = _model(job.table / MODEL_DIR, job.model)
        labels = None
        if job.place == "label" and job.columns.labels is not None:
            label_of = np.empty(len(job.classes) + 1, dtype=object)  # last: None, for NO_LABEL
            label_of[:-1] = job.classes
            labels = label_of[codes]
        limits: Any = require_extra("threadpoolctl", "parquet")
        with limits.threadpool_limits(1):  # more threads round matrix products differently
            vectors, buckets = hasher.place_items(items, labels)
        del items
        digest = _digest(part.number, numbers, codes, vectors, buckets, keys, texts)
        unit = job.metric == "cosine"
        index = HashIndex.build(
            buckets, vectors, numbers, codes, shape=hasher.shape_, unit_length=unit
        )
    except ValueError as error:
        raise DataError(f"{shard.address}, rows from {part.start}: {error}") from None
    del vectors
    with new_directory(job.run_path(part)) as directory:
        index.save(directory / INDEX_DIR)
        order = np.argsort(numbers)
        payload = [texts[row] for row in order.tolist()] if texts else repeat(None)
        columns = (numbers[order], keys or repeat(None), codes[order], repeat(None), payload)
        _write_rows(directory / _ROWS_FILE, item_rows(*columns))
        crc = _file_crc(directory / _ROWS_FILE)
        values = RunInfo(digest, int(numbers.min()), int(numbers.max()), crc)
        replace_file(directory / "run.json", json.dumps([*values, _crc(values)]))


def _codes(rows: ShardRows, code_of: dict[Any, int]) -> npt.NDArray[np.int64]:
    """Label codes of rows, whose labels are positions in a list of distinct ones."""
    assert rows.labels is not None
    positions, distinct = rows.labels
    labels = label_array(distinct, len(distinct)).tolist()
    codes = [NO_LABEL if label is None else code_of.get(label, _UNKNOWN) for label in labels]
    row_codes = np.array([*codes, NO_LABEL], dtype=np.int64)[positions]  # -1 is the last
    if (row_codes == _UNKNOWN).any():  # categories that do not occur are no problem
        raise ValueError("it was changed while it was read")
    return row_codes


def _digest(
    first: int, numbers: Any, codes: Any, vectors: Any, buckets: Any, keys: Sequence[str],
    texts: Sequence[str | None],
) -> int:  # fmt: skip
    """A sum over chunks of rows, independent of how rows are split into parts."""
    total = 0
    for start in range(0, len(numbers), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        digest = hashlib.blake2b(b"%d" % (first + start), digest_size=16)
        for array in (numbers, codes, buckets, vectors):
            digest.update(np.ascontiguousarray(array[chunk]).data)
        if keys or texts:
            digest.update(json.dumps([keys[chunk], texts[chunk]]).encode())
        total += int.from_bytes(digest.digest())
    return total


def _write_rows(path: Path, rows: Iterator[ItemRow]) -> None:
    arrow: Any = require_extra("pyarrow", "parquet")
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in _FIELDS])
    with (
        new_file(path) as new,
        arrow.OSFile(str(new), "wb") as file,
        arrow.ipc.new_file(file, schema) as writer,
    ):
        while chunk := list(islice(rows, _ROWS)):
            columns = zip(*chunk, strict=True)
            arrays = [arrow.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
            writer.write_batch(arrow.record_batch(arrays, schema))


def _read_rows(path: Path) -> Iterator[ItemRow]:
    arrow: Any = require_extra("pyarrow", "parquet")
    try:
        with arrow.OSFile(str(path)) as file, arrow.ipc.open_file(file) as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                yield from zip(*map(_to_list, batch.columns), strict=False)
    except (arrow.ArrowException, OSError) as error:
        raise damaged_run(path.parent, f"{path.name}: {error}") from None


def _to_list(column: Any) -> Any:
    """Values of a column; the first two cases are fast paths."""
    if column.null_count == len(column):
        return repeat(None)
    if column.null_count == 0 and str(column.type) == "int64":
        return column.to_numpy().tolist()
    return column.to_pylist()


def run_info(job: Job, part: Part) -> RunInfo:
    """Read and check the summary of a run."""
    path = job.run_path(part) / "run.json"
    try:
        *values, crc = json.loads(read_file(path))
        info = RunInfo(*values)
        if crc != _crc(info):
            raise ValueError("its checksum is wrong")
    except (ValueError, TypeError) as error:
        raise damaged_run(path.parent, f"run.json: {error}") from None
    return info


@contextmanager
def run_errors(indexes: Sequence[Path]) -> Iterator[None]:
    """Add a hint to errors about a damaged index of a run."""
    try:
        yield
    except CorruptIndexError as error:
        for path in indexes:
            if f"{path}{os.sep}" in str(error):
                raise damaged_run(path.parent, str(error)) from None
        raise


def damaged_run(path: Path, reason: str) -> CorruptIndexError:
    """The error for a damaged run, with a hint how to repeat it."""
    hint = f"remove {path}, and run the same command again: that run is made once more"
    return CorruptIndexError(f"{path} is damaged: {reason}", hint=hint)


def _crc(info: RunInfo) -> int:
    return zlib.crc32(repr(tuple(info)).encode())


def _file_crc(path: Path) -> int:
    crc = 0
    with open_regular(path) as file:
        while chunk := file.read(1 << 20):
            crc = zlib.crc32(chunk, crc)
    return crc


# -- the table -------------------------------------------------------------------------------------


def merge_buckets(job: Job, plan: MergePlan, uid: str, span: BucketRange, n_bytes: int) -> None:
    """Merge a range of buckets of all runs into the segment, and store its checksums."""
    with run_errors(plan.runs):
        sums = plan.merge(job.index, uid, span, n_bytes)
    replace_file(merged_path(job, span), sums.tobytes())


def merged_path(job: Job, span: BucketRange) -> Path:
    """Path of the checksums of a range, which exists once it is merged."""
    return job.work / "merged" / f"{span.entry}-{span.n_entries}"


def write_items(job: Job, generation: str) -> None:
    """Write ids, labels and payload of all items, by ascending number."""
    runs = [(run_info(job, part), job.run_path(part)) for part in job.parts()]
    for info, path in runs:
        if _file_crc(path / _ROWS_FILE) != info.rows_crc:
            raise damaged_run(path, f"the checksum of {_ROWS_FILE} is wrong")
    runs.sort(key=lambda run: run[0].first)
    rows = [_read_rows(path / _ROWS_FILE) for _, path in runs]
    are_disjoint = all(run.last < following.first for (run, _), (following, _) in pairwise(runs))
    merged = chain.from_iterable(rows) if are_disjoint else _unique(merge(*rows, key=itemgetter(0)))
    with new_file(job.table / DATABASE) as temporary:
        try:
            job.catalog().write_rows(temporary, generation, merged)
        except ValueError as error:
            raise DataError(f"{job.columns.ids}: {error}") from None


def _unique(rows: Iterator[ItemRow]) -> Iterator[ItemRow]:
    last = -1
    for row in rows:
        if row[0] == last:
            raise ValueError(f"ids has id {last} more than once")
        last = row[0]
        yield row
