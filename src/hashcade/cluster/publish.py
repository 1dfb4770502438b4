"""Publishing a table into Redis; verifying, repairing and retiring what was published."""

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
from .staging import Progress, Staged

LARGE_BLOCK = 256 << 10  # bytes of a mean block from which on it is better to have more buckets
_AT_ONCE = 4 << 20  # bytes
_LOCK_SECONDS = 30
_OVERHEAD = 1.15  # of Redis, for a value of some kilobytes
_UNLINKED_AT_ONCE = 1000

# May be carried out twice: who holds the lock gets it again.
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
    """Write the table in a directory into Redis as a generation, and return what it consists of.

    Nothing that is searched is touched. A table that was published already is verified, and
    what is missing is written again; so to repeat what was stopped is always right.

    With ``first_pass="int8"`` a search fetches int8 codes of a bucket, and then the vectors that
    they leave: the same results, a third of the bytes, and a second round trip. It is faster for
    large blocks and on slow networks, see docs/results/int8.md.
    """
    check_storage(first_pass)
    generations = Generations(reader, name)
    with (
        _staged(table, progress, first_pass) as staged,
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
            except ClusterError:  # memory is short, perhaps: give back what was taken
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
    """Read every key of a generation, by default the current one; list what is wrong."""
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
    """Write missing and wrong keys of a generation again, and return how many they were.

    The table in the directory must be the one that was published, at least where it is needed.
    """
    generations = Generations(reader, name)
    generation = generation or generations.require_current()
    with (
        _staged_as(generations, generation, table, progress) as staged,
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

    One that a query node uses is refused, and so is one that is being written, unless
    ``incomplete`` says that its publisher has died.
    """
    generations = Generations(reader, name)
    with _publisher_lock(generations):
        names = [generation] if generation else []
        if not generation:
            current = generations.current()
            keep = {current.get("generation"), current.get("previous")}
            states = generations.states()
            names = [
                g for g, s in states.items() if g not in keep and (s != "loading" or incomplete)
            ]
        for each in names:
            generations.retire(each, incomplete=incomplete)
            key = generations.keys.of_generation(each, "manifest")
            if reader.get_many([key])[0] is not None:
                manifest = generations.manifest(each)
                try:
                    directory = read_directory(generations, manifest)
                except ClusterError:
                    if not incomplete:
                        raise
                    directory = None  # blocks are written after it: there are none
                _delete(generations, manifest, directory)
            generations.forget(each)
        return names


# -- writing ---------------------------------------------------------------------------------------


@contextmanager
def _staged(table: Path | str, progress: Progress, first_pass: str | None) -> Iterator[Staged]:
    with tempfile.TemporaryDirectory(prefix="hashcade-") as folder:
        staged = Staged(Path(table), Path(folder), progress, first_pass)
        try:
            yield staged
        finally:
            staged.close()


@contextmanager
def _staged_as(
    generations: Generations, generation: str, table: Path | str, progress: Progress
) -> Iterator[Staged]:
    """The table in the form in which a generation was published, also if its manifest is lost."""
    try:
        first_pass = generations.manifest(generation).first_pass
    except ClusterError:
        with _staged(table, progress, None) as staged:
            if staged.manifest.generation == generation:
                yield staged
                return
        first_pass = "int8"
    with _staged(table, progress, first_pass) as staged:
        yield staged


@contextmanager
def _publisher_lock(generations: Generations) -> Iterator[Any]:
    """Keep other publishers away; gives a function that raises if the lock was lost."""
    key, token = generations.keys.publisher, uuid4().hex
    state = {"until": 0.0}

    def take() -> None:
        began = time.monotonic()
        if not generations.reader.run(key, "EVAL", _LOCK, 1, key, token, _LOCK_SECONDS):
            raise ClusterError(
                f"another publisher is at work on {generations.keys.name!r}",
                hint=f"try again; one that died is forgotten after {_LOCK_SECONDS} seconds",
            )
        state["until"] = began + _LOCK_SECONDS

    def check() -> None:
        if time.monotonic() > state["until"] - _LOCK_SECONDS / 2:
            take()

    take()
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(_LOCK_SECONDS / 3):
            try:
                take()
            except HashcadeError:
                return  # the next check raises

    keeper = threading.Thread(target=keep, name="hashcade-publisher", daemon=True)
    keeper.start()
    try:
        yield check
    finally:
        ended.set()
        keeper.join()
        generations.reader.run(key, "EVAL", _UNLOCK, 1, key, token)


def _check_memory(reader: Reader, n_bytes: int) -> None:
    """Refuse servers that would drop blocks, or that have no room for them."""
    servers = reader.each_master("INFO", "memory")
    needed = int(n_bytes * _OVERHEAD / len(servers))  # slots spread keys evenly
    for address, reply in servers.items():
        info = dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)
        policy, most = info["maxmemory_policy"], int(info["maxmemory"])
        if policy.startswith("allkeys"):
            raise ClusterError(
                f"the Redis server {address} has maxmemory-policy {policy}: it would drop blocks",
                address=address,
                hint="set maxmemory-policy to noeviction",
            )
        room = max(most - int(info["used_memory"]), 0)
        if most and needed > room:
            raise ClusterError(
                f"the Redis server {address} has {room:,} bytes left, it needs about {needed:,}",
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
        if n_bytes >= _AT_ONCE:
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


def _repair(generations: Generations, staged: Staged, manifest: Manifest) -> int:
    """Write files and blocks with problems again, where the table has just what was published."""
    reader, keys = generations.reader, generations.keys

    def renamed(pairs: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
        for key, value in pairs:
            old, new = staged.manifest.generation, manifest.generation
            yield key.replace(f":g:{old}:", f":g:{new}:"), value

    files = staged.manifest.files
    bad = [name for name, _ in _wrong_files(generations, manifest)]
    names = [name for name in bad if files.get(name) == manifest.files[name]]
    _write(reader, renamed(staged.file_values(keys, names)))
    directory = read_directory(generations, manifest)
    own, crcs = staged.directory.by_block(), directory.by_block()
    wrong = [block for block, _ in _wrong_blocks(generations, manifest)]
    blocks = {block for block in wrong if own.get(block) == crcs[block]}
    if blocks:
        _write(reader, renamed(staged.block_values(keys, blocks)))
    return len(names) + len(blocks)


def _problems(generations: Generations, manifest: Manifest) -> Iterator[tuple[Any, ClusterError]]:
    """Files and blocks that are not as they must be, and why; everything is read."""
    bad = list(_wrong_files(generations, manifest))
    yield from bad
    if DIRECTORY not in (name for name, _ in bad):
        yield from _wrong_blocks(generations, manifest)


def _wrong_files(
    generations: Generations, manifest: Manifest
) -> Iterator[tuple[str, ClusterError]]:
    for name in manifest.files:
        try:
            for _ in generations.file(manifest, name):
                pass
        except ClusterError as error:
            yield name, error


def _wrong_blocks(
    generations: Generations, manifest: Manifest
) -> Iterator[tuple[tuple[str, int], ClusterError]]:
    directory = read_directory(generations, manifest)
    for kind in manifest.kinds:
        found = fetch_blocks(generations, manifest, directory, kind, range(manifest.n_buckets))
        for bucket, data in zip(directory.buckets.tolist(), found, strict=True):
            if isinstance(data, ClusterError):
                yield (kind, bucket), data


def _delete(generations: Generations, manifest: Manifest, directory: Directory | None) -> None:
    """Delete blocks, and then files: the one that tells of the others comes last."""
    batch: list[tuple[Any, ...]] = []
    for key in _all_keys(generations, manifest, directory):
        batch.append(("UNLINK", key))
        if len(batch) == _UNLINKED_AT_ONCE:
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
