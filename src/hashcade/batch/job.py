"""What a build is about, and the directory in which it works.

::

    OUTPUT.building/
        lock             held by the process that builds
        settings.json    the job: model, shards and columns; another one is not resumed here
        runs/            a directory per part of a shard: index/, rows.arrow, run.json
        merged/          checksums of the ranges of buckets that are in the segment
        table/           the table in the making
        finished         the generation of the table, once it is complete
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from hashcade._io import read_file, replace_file
from hashcade.data import ShardColumns
from hashcade.errors import CorruptIndexError, StorageError
from hashcade.store import INDEX_DIR, Catalog, Label

_CHUNK = 1024  # rows of a pass of the network: parts begin at its multiples, so all are the same


class Shard(NamedTuple):
    """One file of items."""

    address: str
    version: str
    n_rows: int
    row_bytes: int


class Part(NamedTuple):
    """Rows of a shard that become one run; ``number`` is that of the first row among all."""

    shard: int
    start: int
    stop: int
    number: int


@dataclass(frozen=True)
class Job:
    """Everything that decides what the table will be, and where it is made."""

    work: Path
    model: str  # its fingerprint
    item_size: int
    shards: tuple[Shard, ...]
    columns: ShardColumns
    id_kind: str  # "int" or "str"
    classes: tuple[Label, ...]
    metric: str
    place: str
    part_rows: int

    @property
    def table(self) -> Path:
        """The table in the making."""
        return self.work / "table"

    @property
    def index(self) -> Path:
        """Its index."""
        return self.table / INDEX_DIR

    @property
    def n_items(self) -> int:
        """Number of all items."""
        return sum(shard.n_rows for shard in self.shards)

    def parts(self) -> list[Part]:
        """The runs to be made, in the order of the items."""
        starts = accumulate((shard.n_rows for shard in self.shards), initial=0)
        return [
            Part(number, at, min(at + self.part_rows, shard.n_rows), first + at)
            for number, (shard, first) in enumerate(zip(self.shards, starts, strict=False))
            for at in range(0, shard.n_rows, self.part_rows)
        ]

    def run_path(self, part: Part) -> Path:
        """Where a run is, or will be."""
        return self.work / "runs" / f"{part.shard:06d}-{part.start:012d}"

    def catalog(self) -> Catalog:
        """The catalog of the table, without its items."""
        local = [shard.address for shard in self.shards if "://" not in shard.address]
        data = os.path.commonpath(map(os.path.abspath, local)) if local else None
        catalog = Catalog(
            self.classes, metric=self.metric, place=self.place,
            data=None if data is None else Path(data),
        )  # fmt: skip
        catalog.id_kind = self.id_kind
        return catalog

    def content(self) -> dict[str, Any]:
        """What decides the content of the table, apart from that of the shards."""
        stored = json.loads(json.dumps(asdict(self), default=str))
        return {name: stored[name] for name in stored if name not in ("work", "part_rows")}

    def begin(self) -> Job:
        """Write the settings, or find those of the same job that was begun here; return it."""
        path = self.work / "settings.json"
        if not path.exists():
            stored = {**self.content(), "part_rows": self.part_rows}
            replace_file(path, json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
            return self
        try:
            stored = json.loads(read_file(path))
            part_rows = int(stored.pop("part_rows"))
            problem = _difference(stored, self.content())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptIndexError(f"{path} is damaged: {error!r}", hint=_anew(self)) from None
        if problem is not None:
            message = f"{self.work} holds another build that was not finished: {problem}"
            raise StorageError(message, hint=_anew(self))
        return Job(**{**vars(self), "part_rows": part_rows})


def part_rows(n_bytes: int, row_bytes: int) -> int:
    """Rows of a part that takes so many bytes."""
    return max(1, n_bytes // (row_bytes * _CHUNK)) * _CHUNK


def _anew(job: Job) -> str:
    return f"to start over, remove {job.work}"


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """The first thing that two jobs differ in."""
    before = {shard[0]: shard[1:] for shard in old["shards"]}
    after = {shard[0]: shard[1:] for shard in new["shards"]}
    for address, described in after.items():
        if address in before and before[address] != described:
            return f"{address} has changed since: {before[address][0]}, now {described[0]}"
    if list(before) != list(after):
        missing = [a for a in before if a not in after] or [a for a in after if a not in before]
        return f"{missing[0] if missing else 'the order of shards'} is not the same"
    for name, value in new.items():
        if old.get(name) != value:
            return f"{name} was {_short(old.get(name))}, now {_short(value)}"
    return None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
