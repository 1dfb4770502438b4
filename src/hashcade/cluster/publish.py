"""Publish a table to Redis; verify, repair and retire published generations."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

from hashcade.errors import ClusterError, HashcadeError
from hashcade.index import check_storage

from .blocks import DIRECTORY, Directory, block_keys, fetch_blocks, read_directory
from .generations import COMPLETE, Generations
from .keys import n_parts
from .manifest import Manifest
from .reader import Reader
from .staging import Progress, StagedTable

LARGE_BLOCK = 256 << 10  # mean bytes of a block beyond which more buckets are better
_BATCH_BYTES = 4 << 20
_LOCK_SECONDS = 30
_OVERHEAD = 1.15  # memory overhead of Redis, for values of some kilobytes
_BATCH_KEYS = 1000

# Idempotent: the holder of the lock gets it again.
_LOCK = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return 1
"""
_UNLOCK = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end return 1"


def publish(
    table: Path | str,
    reader: Reader,
    name: str,
    *,
    activate: bool = False,
    first_pass: str | None = None,
    progress: Progress = lambda done, total: None,
) -> Manifest:
    """Write the table in a directory to Redis as a new generation, and return its manifest.

    The current generation is not touched. A table that is already published is verified, and
    missing keys are written again; so it is always safe to retry.

    With ``first_pass="int8"`` a search fetches the int8 codes of a bucket, and then only the
    vectors that these do not rule out: the same results with a third of the bytes, but a second
    round trip. It is faster for large blocks and on slow networks, see docs/results/int8.md.
    """
    check_storage(first_pass)
    generations = Generations(reader, name)
    with (
        _stage(table, progress, first_pass) as staged,
        _publisher_lock(generations) as check_lock,
    ):
        manifest = staged.manifest
        generation = manifest.generation
        if generations.states().get(generation) == COMPLETE:
            _restore_manifest(generations, manifest)
            _repair(generations, staged, manifest)
        else:
            _check_memory(reader, staged.n_bytes)
            generations.begin(generation, manifest)
            keys = generations.keys
            try:
                _write(reader, staged.file_values(keys, manifest.files), check_lock)
                _write(reader, staged.block_values(keys), check_lock)
            except ClusterError:  # perhaps out of memory: free what was written
                _delete(generations, manifest, staged.directory)
                generations.forget(generation)
                raise
        for _, error in _problems(generations, manifest):
            raise error
        check_lock()
        generations.complete(generation)
        if activate:
            generations.activate(generation)
        return manifest


def verify(reader: Reader, name: str, generation: str | None = None) -> list[str]:
    """Read every key of a generation, by default the current one; return the problems."""
    generations = Generations(reader, name)
    manifest = generations.manifest(generation or generations.require_current())
    return [str(error) for _, error in _problems(generations, manifest)]


def repair(
    table: Path | str,
    reader: Reader,
    name: str,
    generation: str | None = None,
    *,
    progress: Progress = lambda done, total: None,
) -> int:
    """Write missing and damaged keys of a generation again; return their number.

    The table in the directory must still have the published content of these keys.
    """
    generations = Generations(reader, name)
    generation = generation or generations.require_current()
    with (
        _stage_as(generations, generation, table, progress) as staged,
        _publisher_lock(generations),
    ):
        if staged.manifest.generation == generation:
            manifest = staged.manifest
            _restore_manifest(generations, manifest)
        else:
            manifest = generations.manifest(generation)
        n_repaired = _repair(generations, staged, manifest)
        for _, error in _problems(generations, manifest):
            raise ClusterError(
                f"{error}, and cannot be repaired: the table was changed since it was published",
                address=error.address,
                hint="publish it again",
            )
        return n_repaired


def retire(
    reader: Reader, name: str, generation: str | None = None, *, incomplete: bool = False
) -> list[str]:
    """Delete a generation, or all but the current and the previous one; return their names.

    A generation that a query node uses is refused, and so is one that is being written, unless
    ``incomplete`` says that its publisher has died.
    """
    generations = Generations(reader, name)
    with _publisher_lock(generations):
        names = [generation] if generation else []
        if not generation:
            current = generations.current()
            protected = {current.get("generation"), current.get("previous")}
            states = generations.states()
            candidates = [g for g in states if g not in protected]
            names = [g for g in candidates if states[g] != "loading" or incomplete]
        for old in names:
            generations.retire(old, incomplete=incomplete)
            key = generations.keys.of_generation(old, "manifest")
            if reader.get_many([key])[0] is not None:
                manifest = generations.manifest(old)
                try:
                    directory = read_directory(generations, manifest)
                except ClusterError:
                    if not incomplete:
                        raise
                    directory = None  # written before the blocks: there are none
                _delete(generations, manifest, directory)
            generations.forget(old)
        return names


# -- writing ---------------------------------------------------------------------------------------


@contextmanager
def _stage(table: Path | str, progress: Progress, first_pass: str | None) -> Iterator[StagedTable]:
    with tempfile.TemporaryDirectory(prefix="hashcade-") as folder:
        staged = StagedTable(Path(table), Path(folder), progress, first_pass)
        try:
            yield staged
        finally:
            staged.close()


@contextmanager
def _stage_as(
    generations: Generations, generation: str, table: Path | str, progress: Progress
) -> Iterator[StagedTable]:
    """The table staged as a generation was published, even if its manifest is lost."""
    try:
        first_pass = generations.manifest(generation).first_pass
    except ClusterError:
        with _stage(table, progress, None) as staged:
            if staged.manifest.generation == generation:
                yield staged
                return
        first_pass = "int8"
    with _stage(table, progress, first_pass) as staged:
        yield staged


@contextmanager
def _publisher_lock(generations: Generations) -> Iterator[Any]:
    """Hold the publisher lock; yields a function that raises if it was lost."""
    key, token = generations.keys.publisher, uuid4().hex
    state = {"until": 0.0}

    def acquire() -> None:
        start = time.monotonic()
        if not generations.reader.run(key, "EVAL", _LOCK, 1, key, token, _LOCK_SECONDS):
            raise ClusterError(
                f"another publisher is at work on {generations.keys.name!r}",
                hint=f"try again; one that died is forgotten after {_LOCK_SECONDS} seconds",
            )
        state["until"] = start + _LOCK_SECONDS

    def check() -> None:
        if time.monotonic() > state["until"] - _LOCK_SECONDS / 2:
            acquire()

    acquire()
    stopped = threading.Event()

    def renew() -> None:
        while not stopped.wait(_LOCK_SECONDS / 3):
            try:
                acquire()
            except HashcadeError:
                return  # the next check raises

    renewer = threading.Thread(target=renew, name="hashcade-publisher", daemon=True)
    renewer.start()
    try:
        yield check
    finally:
        stopped.set()
        renewer.join()
        generations.reader.run(key, "EVAL", _UNLOCK, 1, key, token)


def _check_memory(reader: Reader, n_bytes: int) -> None:
    """Refuse servers that would evict blocks, or that lack memory for them."""
    servers = reader.each_master("INFO", "memory")
    needed = int(n_bytes * _OVERHEAD / len(servers))  # slots spread keys evenly
    for address, reply in servers.items():
        info = dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)
        policy, limit = info["maxmemory_policy"], int(info["maxmemory"])
        if policy.startswith("allkeys"):
            raise ClusterError(
                f"the Redis server {address} has maxmemory-policy {policy}: it would drop blocks",
                address=address,
                hint="set maxmemory-policy to noeviction",
            )
        available = max(limit - int(info["used_memory"]), 0)
        if limit and needed > available:
            raise ClusterError(
                f"the Redis server {address} has {available:,} bytes left, "
                f"it needs about {needed:,}",
                address=address,
                hint="raise maxmemory, add servers, or retire a generation",
            )


def _write(
    reader: Reader, pairs: Iterable[tuple[str, bytes]], check_lock: Any = lambda: None
) -> None:
    batch: list[tuple[Any, ...]] = []
    n_bytes = 0
    for key, value in pairs:
        batch.append(("SET", key, value))
        n_bytes += len(value)
        if n_bytes >= _BATCH_BYTES:
            check_lock()
            reader.pipeline(batch)
            batch, n_bytes = [], 0
    if batch:
        check_lock()
        reader.pipeline(batch)


def _restore_manifest(generations: Generations, manifest: Manifest) -> None:
    try:
        generations.manifest(manifest.generation)
    except ClusterError:
        key = generations.keys.of_generation(manifest.generation, "manifest")
        generations.reader.run(key, "SET", key, manifest.to_bytes())


def _repair(generations: Generations, staged: StagedTable, manifest: Manifest) -> int:
    """Rewrite damaged files and blocks, where the table still has the published content."""
    reader, keys = generations.reader, generations.keys

    def renamed(pairs: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
        for key, value in pairs:
            old, new = staged.manifest.generation, manifest.generation
            yield key.replace(f":g:{old}:", f":g:{new}:"), value

    files = staged.manifest.files
    damaged_files = [name for name, _ in _damaged_files(generations, manifest)]
    names = [name for name in damaged_files if files.get(name) == manifest.files[name]]
    _write(reader, renamed(staged.file_values(keys, names)))
    directory = read_directory(generations, manifest)
    staged_crcs, crcs = staged.directory.by_block(), directory.by_block()
    damaged = [block for block, _ in _damaged_blocks(generations, manifest)]
    blocks = {block for block in damaged if staged_crcs.get(block) == crcs[block]}
    if blocks:
        _write(reader, renamed(staged.block_values(keys, blocks)))
    return len(names) + len(blocks)


def _problems(generations: Generations, manifest: Manifest) -> Iterator[tuple[Any, ClusterError]]:
    """Missing or damaged files and blocks, with the errors; everything is read."""
    damaged = list(_damaged_files(generations, manifest))
    yield from damaged
    if DIRECTORY not in (name for name, _ in damaged):
        yield from _damaged_blocks(generations, manifest)


def _damaged_files(
    generations: Generations, manifest: Manifest
) -> Iterator[tuple[str, ClusterError]]:
    for name in manifest.files:
        try:
            for _ in generations.file(manifest, name):
                pass
        except ClusterError as error:
            yield name, error


def _damaged_blocks(
    generations: Generations, manifest: Manifest
) -> Iterator[tuple[tuple[str, int], ClusterError]]:
    directory = read_directory(generations, manifest)
    for kind in manifest.kinds:
        blocks = fetch_blocks(generations, manifest, directory, kind, range(manifest.n_buckets))
        for bucket, data in zip(directory.buckets.tolist(), blocks, strict=True):
            if isinstance(data, ClusterError):
                yield (kind, bucket), data


def _delete(generations: Generations, manifest: Manifest, directory: Directory | None) -> None:
    """Delete blocks, then files; the directory, which lists the blocks, comes last."""
    batch: list[tuple[Any, ...]] = []
    for key in _all_keys(generations, manifest, directory):
        batch.append(("UNLINK", key))
        if len(batch) == _BATCH_KEYS:
            generations.reader.pipeline(batch)
            batch = []
    if batch:
        generations.reader.pipeline(batch)


def _all_keys(
    generations: Generations, manifest: Manifest, directory: Directory | None
) -> Iterator[str]:
    keys, generation = generations.keys, manifest.generation
    if directory is not None:
        for row, kind in product(range(manifest.n_buckets), manifest.kinds):
            yield from block_keys(generations, manifest, directory, kind, row)
    for name in sorted(manifest.files, key=lambda name: name == DIRECTORY):
        yield from keys.file(generation, name, n_parts(manifest.files[name]["bytes"]))
