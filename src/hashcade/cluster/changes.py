"""Replication of changes of a published table: a stream in Redis that query nodes follow.

The log of the table on disk is authoritative: a change is written there first. An entry of the
stream takes a node from one commit of the table to a later one. Its id is the number of its last
change, so that no entry is applied twice; it also has the number of its first change, so that a
node detects gaps. It contains the log records of the changes, and the final catalog rows of their
items.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from hashcade.errors import ClusterError, CorruptIndexError
from hashcade.store import Catalog, Change, Label, apply_changes, from_record

from .generations import Generations
from .remote_index import RemoteIndex

MAX_ENTRY_BYTES = 64 << 20
_BATCH_ENTRIES = 64  # per read

# The end of the stream: number and checksum of the last change, or 0.
_TAIL = """
local tail = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
if not tail[1] then return {'0', ''} end
return {tail[1][1], tail[1][2][6]}
"""
# Append after the expected last entry. Idempotent: a retry changes nothing.
_APPEND = """
local tail = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local last = tail[1] and tail[1][1] or '0'
if last == ARGV[2] then return 'done' end
if last ~= ARGV[1] then return 'changed' end
redis.call('XADD', KEYS[1], ARGV[2], 'first', ARGV[3], 'crc', ARGV[4], 'mark', ARGV[5], 'data',
  ARGV[6])
return 'done'
"""


@dataclass(frozen=True, eq=False)
class Entry:
    """One entry of the stream."""

    first: int
    last: int
    changes: list[Change]
    rows: list[list[Any]]
    classes: list[Label]
    id_kind: str | None

    @property
    def numbers(self) -> Any:
        """Numbers of all items that changed."""
        return np.unique(np.concatenate([change.numbers for change in self.changes]))


def read_entry(reply: Any) -> Entry:
    """Parse an entry of the stream, as :meth:`Stream.send` writes it."""
    try:
        name, fields = reply
        values = dict(zip(fields[::2], fields[1::2], strict=True))
        data = values[b"data"]
        if zlib.crc32(data) != int(values[b"crc"]):
            raise ValueError("its checksum is wrong")
        head, _, records = data.partition(b"\n")
        body = json.loads(head)
        offset, changes = 0, []
        for length in body["records"]:
            changes.append(from_record(records[offset : offset + length]))
            offset += length
        first, last = int(values[b"first"]), int(name.split(b"-")[0])
        if len(changes) != last - first + 1 or offset != len(records):
            raise ValueError("it has another number of changes than it says")
        rows, classes, kind = body["rows"], body["classes"], body["ids"]
        if type(rows) is not list or type(classes) is not list:
            raise ValueError("its items are not a list")
        return Entry(first, last, changes, rows, classes, kind)
    except (KeyError, TypeError, ValueError, AttributeError, CorruptIndexError) as error:
        raise ClusterError(
            f"an entry of the stream of changes cannot be read: {error}",
            hint="let the writer send it again: hashcade.cluster.Writer.resend",
        ) from None


class Stream:
    """The stream of changes of one table."""

    def __init__(self, generations: Generations, lineage: str) -> None:
        self.reader, self.key = generations.reader, generations.keys.changes(lineage)

    def tail(self) -> tuple[int, int | None]:
        """Number of the last change in the stream, 0 for none, and the checksum of its record."""
        name, mark = self.reader.run(self.key, "EVAL", _TAIL, 1, self.key)
        return int(name.split(b"-")[0]), int(mark) if mark else None

    def entries_after(self, sequence: int, *, at_master: bool = False) -> list[Entry]:
        """Entries that end after a change; the master may have some that replicas still lack."""
        read = self.reader.run if at_master else self.reader.read
        command = ("XRANGE", self.key, f"{sequence + 1}-0", "+", "COUNT", _BATCH_ENTRIES)
        return [read_entry(reply) for reply in read(self.key, *command)]

    def send(self, catalog: Catalog, base: int) -> int:
        """Append the changes after ``base`` that the stream lacks; returns the last number.

        The catalog must show one commit.
        """
        last, (tail, mark) = catalog.last_change, self.tail()
        start = max(tail, base)
        records = dict(catalog.records_after(max(tail, 1) - 1))
        if tail > last or (tail in records and zlib.crc32(records[tail]) != mark):
            raise _conflict(self.key)
        if start >= last:
            return last
        data = _encode_entry(catalog, start, last)
        answer = self.reader.run(
            self.key, "EVAL", _APPEND, 1, self.key, f"{tail}-0" if tail else "0", f"{last}-0",
            start + 1, zlib.crc32(data), zlib.crc32(records[last]), data,
        )  # fmt: skip
        if answer != b"done":
            raise _conflict(self.key)
        return last

    def delete(self) -> None:
        """Delete the stream."""
        self.reader.run(self.key, "UNLINK", self.key)

    def trim(self, sequence: int) -> None:
        """Delete entries that end at this change or before."""
        self.reader.run(self.key, "XTRIM", self.key, "MINID", f"{sequence + 1}-0")


def _encode_entry(catalog: Catalog, start: int, last: int) -> bytes:
    """Serialize the changes ``start + 1`` to ``last`` with the rows of their items."""
    records = catalog.records_after(start)
    if [number for number, _ in records] != list(range(start + 1, last + 1)):
        raise ClusterError(
            f"the log of the table does not have the changes {start + 1} to {last} any more",
            hint="publish the table again",
        )
    changes = [from_record(body) for _, body in records]
    numbers = np.concatenate([change.numbers for change in changes])
    head = json.dumps(
        {
            "records": [len(body) for _, body in records],
            "rows": catalog.rows_of(numbers),
            "classes": catalog.classes,
            "ids": catalog.id_kind,
        }
    ).encode()
    data = b"\n".join([head, b"".join(body for _, body in records)])
    if len(data) > MAX_ENTRY_BYTES:
        raise ClusterError(
            f"changes {start + 1} to {last} have {len(data):,} bytes, "
            f"at most {MAX_ENTRY_BYTES:,} are sent at once",
            hint="publish the table again",
        )
    return data


def _conflict(key: str) -> ClusterError:
    return ClusterError(
        f"{key} has changes that this table does not have: there is another writer",
        hint="publish the table again",
    )


def apply_entries(index: RemoteIndex, catalog: Catalog, entries: list[Entry]) -> RemoteIndex:
    """Apply entries to the catalog, which commits them, and to a copy of the index."""
    with catalog.transaction():
        with catalog.change():
            for entry in entries:
                catalog.put_rows(entry.numbers, entry.rows, entry.classes, entry.id_kind)
        new = index.copy()
        try:
            apply_changes(new, [change for entry in entries for change in entry.changes])
        except (ValueError, IndexError) as error:
            raise ClusterError(f"a change does not fit the table: {error}") from None
    return new
