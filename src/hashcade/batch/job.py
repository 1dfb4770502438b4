"""The definition of a build, and its work directory.

::

    OUTPUT.building/
        lock             held by the process that builds
        settings.json    the job: model, shards and columns; only the same job is resumed
        runs/            a directory per part of a shard: index/, rows.arrow, run.json
        merged/          checksums of the bucket ranges that were merged into the segment
        table/           the table under construction
        finished         the generation of the table, once it is complete
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from hashcade._io import read_file, replace_file
from hashcade.data import ShardColumns
from hashcade.errors import CorruptIndexError, StorageError
from hashcade.store import INDEX_DIR, Catalog, Label

_CHUNK = 1024  # rows per pass of the network: parts start at multiples of it, so results are equal


class Shard(NamedTuple):
    """One file of items."""

    address: str
    version: str
    n_rows: int
    row_bytes: int


class Part(NamedTuple):
    """Rows of a shard that become one run; ``number`` is the position of the first among all."""

    shard: int
    start: int
    stop: int
    number: int


@dataclass(frozen=True)
class Job:
    """Everything that determines the table, and the work directory."""

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
        """Directory of the table under construction."""
        return self.work / "table"

    @property
    def index(self) -> Path:
        """Directory of its index."""
        return self.table / INDEX_DIR

    @property
    def n_items(self) -> int:
        """Total number of items."""
        return sum(shard.n_rows for shard in self.shards)

    def parts(self) -> list[Part]:
        """The parts, one per run, in the order of the items."""
        starts = accumulate((shard.n_rows for shard in self.shards), initial=0)
        return [
            Part(number, start, min(start + self.part_rows, shard.n_rows), offset + start)
            for number, (shard, offset) in enumerate(zip(self.shards, starts, strict=False))
            for start in range(0, shard.n_rows, self.part_rows)
        ]

    def run_path(self, part: Part) -> Path:
        """Directory of a run."""
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
        """Everything that determines the content of the table, besides the data in the shards."""
        values = json.loads(json.dumps(asdict(self), default=str))
        return {name: values[name] for name in values if name not in ("work", "part_rows")}

    def begin(self) -> Job:
        """Write the settings, or resume the same job with its stored part size; return the job."""
        path = self.work / "settings.json"
        if not path.exists():
            settings = {**self.content(), "part_rows": self.part_rows}
            replace_file(path, json.dumps(settings, indent=1, ensure_ascii=False) + "\n")
            return self
        try:
            settings = json.loads(read_file(path))
            part_rows = int(settings.pop("part_rows"))
            problem = _difference(settings, self.content())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"{path} is damaged: {error!r}"
            raise CorruptIndexError(message, hint=_restart_hint(self)) from None
        if problem is not None:
            message = f"{self.work} holds another build that was not finished: {problem}"
            raise StorageError(message, hint=_restart_hint(self))
        return replace(self, part_rows=part_rows)


def part_rows(n_bytes: int, row_bytes: int) -> int:
    """Rows of a part that needs ``n_bytes`` of memory."""
    return max(1, n_bytes // (row_bytes * _CHUNK)) * _CHUNK


def _restart_hint(job: Job) -> str:
    return f"to start over, remove {job.work}"


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """The first difference between two jobs."""
    old_shards = {shard[0]: shard[1:] for shard in old["shards"]}
    new_shards = {shard[0]: shard[1:] for shard in new["shards"]}
    for address, shard in new_shards.items():
        if address in old_shards and old_shards[address] != shard:
            return f"{address} has changed since: {old_shards[address][0]}, now {shard[0]}"
    if list(old_shards) != list(new_shards):
        common = old_shards.keys() & new_shards.keys()
        unmatched = [a for a in (*old_shards, *new_shards) if a not in common]
        return f"{unmatched[0] if unmatched else 'the order of shards'} is not the same"
    for name, value in new.items():
        if old.get(name) != value:
            return f"{name} was {_abbreviate(old.get(name))}, now {_abbreviate(value)}"
    return None


def _abbreviate(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
