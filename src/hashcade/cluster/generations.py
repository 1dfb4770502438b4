"""Generations of a table in Redis: their states, the current one, and the nodes that use them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from hashcade.errors import ClusterError

from .keys import Keys, n_parts, parse_frame
from .manifest import Manifest, read_manifest
from .reader import Reader

LOADING, COMPLETE = "loading", "complete"
NODE_SECONDS = 30  # a query node that does not renew its registration expires
_BATCH_PARTS = 16  # parts of a file per request

# Both scripts are idempotent: a retry gives the same answer.
_ACTIVATE = """
if redis.call('HGET', KEYS[2], ARGV[2]) ~= 'complete' then return 'incomplete' end
local epoch = tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0')
local now = redis.call('HGET', KEYS[1], 'generation')
if now == ARGV[2] then return 'done' end
if epoch ~= tonumber(ARGV[1]) then return 'changed' end
redis.call('HSET', KEYS[1], 'generation', ARGV[2], 'previous', now or '', 'epoch', epoch + 1,
  'activated_at', ARGV[3])
return 'done'
"""
_RETIRE = """
if redis.call('HGET', KEYS[1], 'generation') == ARGV[1] then return 'current' end
local state = redis.call('HGET', KEYS[2], ARGV[1])
if not state then return 'unknown' end
if state == 'loading' and ARGV[2] ~= 'incomplete' then return 'loading' end
for _, node in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  if redis.call('EXISTS', KEYS[3] .. ':' .. node) == 1 then return 'used' end
end
redis.call('HSET', KEYS[2], ARGV[1], 'retiring')
return 'done'
"""


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else ""


class Generations:
    """The generations of one table."""

    def __init__(self, reader: Reader, name: str) -> None:
        self.reader, self.keys = reader, Keys(name)

    def states(self) -> dict[str, str]:
        """State of every generation."""
        flat = self.reader.read(self.keys.generations, "HGETALL", self.keys.generations)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {_text(generation): _text(state) for generation, state in pairs}

    def current(self) -> dict[str, str]:
        """``generation``, ``previous``, ``epoch``, ``activated_at``; empty if there is none."""
        names = ("generation", "previous", "epoch", "activated_at")
        values = self.reader.read(self.keys.current, "HMGET", self.keys.current, *names)
        return {name: _text(v) for name, v in zip(names, values, strict=True) if v is not None}

    def require_current(self) -> str:
        """The current generation; an error if there is none."""
        generation = self.current().get("generation")
        if not generation:
            raise ClusterError(
                f"no generation of {self.keys.name!r} is active",
                hint="publish a table with: hashcade cluster publish TABLE URL --name NAME "
                "--activate",
            )
        return generation

    def describe(self) -> list[dict[str, Any]]:
        """Descriptions of all generations, the newest first."""
        current = self.current()
        rows = []
        for generation, state in self.states().items():
            row: dict[str, Any] = {"generation": generation, "state": state, "use": ""}
            if generation in (current.get("generation"), current.get("previous")):
                is_current = generation == current["generation"]
                row["use"] = "current" if is_current else "previous"
            if state == COMPLETE:
                manifest = self.manifest(generation)
                names = ("created_at", "n_items", "n_buckets", "sequence", "mean_block_bytes")
                row |= {name: getattr(manifest, name) for name in names}
                row["nodes"] = self._n_nodes(generation)
            rows.append(row)
        return sorted(rows, key=lambda g: g.get("created_at", "~"), reverse=True)

    def activate(self, generation: str) -> None:
        """Make this generation the current one; atomic for all query nodes."""
        keys, epoch = self.keys, self.current().get("epoch", "0")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        answer = self._run_script(
            _ACTIVATE, [keys.current, keys.generations], epoch, generation, now
        )
        if answer == "incomplete":
            state = self.states().get(generation, "not there")
            raise ClusterError(f"generation {generation!r} is {state}, must be complete")
        if answer == "changed":
            raise ClusterError("another generation was activated meanwhile", hint="try again")

    def _run_script(self, script: str, keys: list[str], *arguments: str) -> str:
        return _text(self.reader.run(keys[0], "EVAL", script, len(keys), *keys, *arguments))

    def rollback(self) -> str:
        """Activate the previous generation, and return its name."""
        previous = self.current().get("previous")
        if not previous:
            raise ClusterError(f"{self.keys.name!r} has no previous generation")
        self.activate(previous)
        return previous

    def begin(self, generation: str, manifest: Manifest) -> None:
        """Register a generation that is about to be written."""
        key = self.keys.of_generation(generation, "manifest")
        self.reader.run(self.keys.generations, "HSET", self.keys.generations, generation, LOADING)
        self.reader.run(key, "SET", key, manifest.to_bytes())

    def complete(self, generation: str) -> None:
        """Mark a generation as complete."""
        self.reader.run(self.keys.generations, "HSET", self.keys.generations, generation, COMPLETE)

    def retire(self, generation: str, *, incomplete: bool = False) -> None:
        """Mark an unused generation as retiring; then its keys may be deleted."""
        keys = self.keys
        nodes = keys.of_generation(generation, "nodes")
        answer = self._run_script(
            _RETIRE, [keys.current, keys.generations, nodes], generation,
            "incomplete" if incomplete else "",
        )  # fmt: skip
        problems = {
            "current": ("is the current one", "activate another one first"),
            "unknown": ("is not there", "see: hashcade cluster generations"),
            "loading": ("is being written", "if its publisher has died, add --incomplete"),
            "used": ("is used by query nodes", f"try again {NODE_SECONDS} seconds after they end"),
        }
        if answer in problems:
            message, hint = problems[answer]
            raise ClusterError(f"generation {generation!r} {message}", hint=hint)

    def forget(self, generation: str) -> None:
        """Delete manifest and state, after the data: an interrupted retirement can be repeated."""
        keys = [self.keys.of_generation(generation, name) for name in ("manifest", "nodes")]
        self.reader.pipeline([("UNLINK", key) for key in keys])
        self.reader.run(self.keys.generations, "HDEL", self.keys.generations, generation)

    # -- query nodes -------------------------------------------------------------------------------

    def register(self, generation: str, node: str) -> None:
        """Register a query node that uses a generation, for the next 30 seconds."""
        nodes = self.keys.of_generation(generation, "nodes")
        renew = ("SET", f"{nodes}:{node}", int(time.time()), "EX", NODE_SECONDS)
        self.reader.pipeline([("SADD", nodes, node), renew])

    def unregister(self, generation: str, node: str) -> None:
        """Unregister a query node."""
        nodes = self.keys.of_generation(generation, "nodes")
        self.reader.pipeline([("SREM", nodes, node), ("UNLINK", f"{nodes}:{node}")])

    def _n_nodes(self, generation: str) -> int:
        nodes = self.keys.of_generation(generation, "nodes")
        members = self.reader.read(nodes, "SMEMBERS", nodes)
        values = self.reader.get_many([f"{nodes}:{_text(member)}" for member in members])
        return sum(value is not None for value in values)

    # -- reading -----------------------------------------------------------------------------------

    def manifest(self, generation: str) -> Manifest:
        """The manifest of a generation."""
        key = self.keys.of_generation(generation, "manifest")
        value = self.reader.get_many([key])[0]
        if value is None:
            raise self.error(key, "is missing")
        manifest = read_manifest(value, key)
        if manifest.generation != generation:
            raise self.error(key, "is that of another generation")
        return manifest

    def file(self, manifest: Manifest, name: str) -> Iterator[bytes | memoryview]:
        """Content of a file in parts; the checksum is verified before the last is yielded."""
        if name not in manifest.files:
            raise ClusterError(f"generation {manifest.generation!r} has no {name}")
        record = manifest.files[name]
        total = n_parts(record["bytes"])
        keys, digest = self.keys.file(manifest.generation, name, total), hashlib.sha256()
        last: memoryview | None = None
        for start in range(0, total, _BATCH_PARTS):
            batch = keys[start : start + _BATCH_PARTS]
            values = self.reader.get_many(batch)
            for number, (key, value) in enumerate(zip(batch, values, strict=True), start):
                if last is not None:
                    yield last
                last = self.part(key, value, number, total)
                digest.update(last)
        if digest.hexdigest() != record["sha256"]:
            raise self.error(keys[0], "and its other parts have a wrong checksum")
        assert last is not None
        yield last

    def part(self, key: str, value: bytes | None, number: int, total: int) -> memoryview:
        """Data of a value, which must be this part."""
        if value is None:
            raise self.error(key, "is missing")
        try:
            return parse_frame(value, number, total)
        except ValueError as error:
            raise self.error(key, str(error)) from None

    def error(self, key: str, problem: str) -> ClusterError:
        """An error that names a key and its server; it is counted in the metrics."""
        self.reader.metrics.count(damaged=1)
        address = self.reader.node_of(key)
        hint = f"hashcade cluster repair TABLE URL --name {self.keys.name}"
        return ClusterError(f"{key} at {address} {problem}", address=address, hint=hint)
