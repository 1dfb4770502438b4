"""Changes of a published table: a stream in Redis that query nodes follow.

The truth is the log of the table on disk: a change is there before anything else happens. An entry
of the stream takes a node from one commit of the table to a later one. Its id is the number of its
last change, so that none can come twice; it names its first one too, so that a node sees a gap.
It has the changes as they are in the log, and what the catalog says of their items at the end.
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

MOST_BYTES = 64 << 20  # of one entry
_READ_AT_ONCE = 64  # entries

# What the stream ends with: number and checksum of the last change, or 0.
_TAIL = """
local tail = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
if not tail[1] then return {'0', ''} end
return {tail[1][1], tail[1][2][6]}
"""
# Append after the entry that is expected to be the last. Carried out twice, it changes nothing.
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
    """Read what :func:`send` wrote."""
    try:
        name, fields = reply
        values = dict(zip(fields[::2], fields[1::2], strict=True))
        data = values[b"data"]
        if zlib.crc32(data) != int(values[b"crc"]):
            raise ValueError("its checksum is wrong")
        head, _, rest = data.partition(b"\n")
        body = json.loads(head)
        at, changes = 0, []
        for length in body["records"]:
            changes.append(from_record(rest[at : at + length]))
            at += length
        first, last = int(values[b"first"]), int(name.split(b"-")[0])
        if len(changes) != last - first + 1 or at != len(rest):
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
        """Number of the last change in it, 0 for none, and the checksum of its record."""
        name, mark = self.reader.run(self.key, "EVAL", _TAIL, 1, self.key)
        return int(name.split(b"-")[0]), int(mark) if mark else None

    def entries_after(self, sequence: int, *, at_master: bool = False) -> list[Entry]:
        """Entries that end after a change; at the master also those that replicas lack yet."""
        ask = self.reader.run if at_master else self.reader.read
        command = ("XRANGE", self.key, f"{sequence + 1}-0", "+", "COUNT", _READ_AT_ONCE)
        return [read_entry(reply) for reply in ask(self.key, *command)]

    def send(self, catalog: Catalog, base: int) -> int:
        """Send what the stream lacks of the log after change ``base``; returns the last number.

        The catalog is that of one commit.
        """
        last, (tail, mark) = catalog.last_change, self.tail()
        start = max(tail, base)
        known = dict(catalog.records_after(max(tail, 1) - 1))
        if tail > last or (tail in known and zlib.crc32(known[tail]) != mark):
            raise _other_writer(self.key)
        if start >= last:
            return last
        data = _encoded(catalog, start, last)
        answer = self.reader.run(
            self.key, "EVAL", _APPEND, 1, self.key, f"{tail}-0" if tail else "0", f"{last}-0",
            start + 1, zlib.crc32(data), zlib.crc32(known[last]), data,
        )  # fmt: skip
        if answer != b"done":
            raise _other_writer(self.key)
        return last

    def delete(self) -> None:
        """Delete all of it."""
        self.reader.run(self.key, "UNLINK", self.key)

    def trim(self, sequence: int) -> None:
        """Delete entries that end at a change or before."""
        self.reader.run(self.key, "XTRIM", self.key, "MINID", f"{sequence + 1}-0")


def _encoded(catalog: Catalog, start: int, last: int) -> bytes:
    """Changes from ``start + 1`` to ``last`` with their items, as bytes."""
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
    if len(data) > MOST_BYTES:
        raise ClusterError(
            f"changes {start + 1} to {last} have {len(data):,} bytes, at most {MOST_BYTES:,} are "
            "sent at once",
            hint="publish the table again",
        )
    return data


def _other_writer(key: str) -> ClusterError:
    return ClusterError(
        f"{key} has changes that this table does not have: there is another writer",
        hint="publish the table again",
    )


def applied(index: RemoteIndex, catalog: Catalog, entries: list[Entry]) -> RemoteIndex:
    """The index after the changes; the catalog, which is written, gets them too, and commits."""
    catalog.begin()
    try:
        with catalog.change():
            for entry in entries:
                catalog.put_rows(entry.numbers, entry.rows, entry.classes, entry.id_kind)
        new = index.copy()
        try:
            apply_changes(new, [change for entry in entries for change in entry.changes])
        except (ValueError, IndexError) as error:
            raise ClusterError(f"a change does not fit the table: {error}") from None
        catalog.commit()
    finally:
        catalog.rollback()
    return new
