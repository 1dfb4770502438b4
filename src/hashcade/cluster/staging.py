"""A table prepared for publishing: files in a temporary directory, and a stream of blocks.

The table on disk is read twice: once for the directory of blocks, which is written to Redis first,
so that the keys of a publisher that died can be deleted; and once for the blocks. The name of a
generation is a hash of its contents. So publishing a table again, after Redis has lost data, writes
the same keys, and leaves no orphans.
"""

from __future__ import annotations

import hashlib
import shutil
import zlib
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from hashcade.errors import ClusterError
from hashcade.learn import model_fingerprint
from hashcade.store import MODEL_DIR, State, load_state

from .blocks import DIRECTORY, Directory, block_arrays
from .keys import PART_DATA_BYTES, Keys, frame, n_parts
from .manifest import Manifest

_COLUMNS = ("ids", "items", "labels")
Progress = Callable[[int, int], None]


class StagedTable:
    """A table prepared for publishing; ``folder`` is an empty directory for its files."""

    def __init__(
        self, table: Path, folder: Path, progress: Progress, first_pass: str | None
    ) -> None:
        self.folder = folder
        self.state: State = load_state(table, read_only=True)[0]
        index = self.state.index
        if len(index) == 0:
            raise ClusterError(f"{table} is empty: there is nothing to publish")
        buckets, counts, sizes = [], [], []
        crcs: dict[str, list[int]] = defaultdict(list)
        files = {name: (folder / name).open("wb") for name in _COLUMNS}
        labels, done = None, 0
        try:
            for block in index.blocks():
                kinds = block_arrays(block, first_pass)
                arrays = next(iter(kinds.values()))
                for name in _COLUMNS:
                    files[name].write(arrays.get(name, b""))
                buckets.append(block.bucket)
                counts.append(len(block.ids))
                for kind, parts in kinds.items():
                    crcs[kind].append(zlib.crc32(b"".join(parts.values())))
                sizes.append(sum(map(len, arrays.values())))
                if block.labels is not None:
                    labels = f"<i{block.labels.dtype.itemsize}"
                done += len(block.ids)
                progress(done, max(len(index), done))
        finally:
            for file in files.values():
                file.close()
        self.directory = Directory(
            np.array(buckets, np.int64),
            np.array(counts, np.int64),
            {kind: np.array(sums, np.uint32) for kind, sums in crcs.items()},
        )
        (folder / DIRECTORY).write_bytes(self.directory.to_bytes())
        self.state.catalog.write(folder, "published", payload_file=False)
        model = None
        if (table / MODEL_DIR).is_dir():
            model = model_fingerprint(table / MODEL_DIR)
            shutil.copytree(table / MODEL_DIR, folder / MODEL_DIR)
        paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.stat().st_size]
        file_records = {path.relative_to(folder).as_posix(): _describe(path) for path in paths}
        manifest = Manifest(
            generation="",
            shape=index.shape,
            dim=index.dim,
            n_items=len(index),
            n_entries=done,
            n_buckets=len(buckets),
            next_id=index.next_id,
            max_norm=index.max_norm,
            unit_length=index.unit_length,
            labels=labels,
            first_pass=first_pass,
            model=model,
            sequence=self.state.catalog.last_change,
            lineage=self.state.catalog.lineage,
            created_at="",
            mean_block_bytes=float(np.mean(sizes)),
            p99_block_bytes=float(np.percentile(sizes, 99)),
            files=file_records,
        )
        self.manifest = replace(
            manifest,
            generation=hashlib.sha256(manifest.to_bytes()).hexdigest()[:16],
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    @property
    def n_bytes(self) -> int:
        """Total bytes of all values."""
        manifest = self.manifest
        files: int = sum(file["bytes"] for file in manifest.files.values())
        return manifest.n_entries * sum(map(manifest.entry_bytes, manifest.kinds)) + files

    def file_values(self, keys: Keys, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Keys and values of files, the directory of blocks first."""
        for name in sorted(names, key=lambda name: (name != DIRECTORY, name)):
            total = n_parts(self.manifest.files[name]["bytes"])
            with (self.folder / name).open("rb") as file:
                for number, key in enumerate(keys.file(self.manifest.generation, name, total)):
                    yield key, frame(file.read(PART_DATA_BYTES), number, total)

    def block_values(
        self, keys: Keys, selection: Container[tuple[str, int]] | None = None
    ) -> Iterator[tuple[str, bytes]]:
        """Keys and values of all blocks, or of a selection of kinds and buckets."""
        for row, block in enumerate(self.state.index.blocks()):
            for kind, arrays in block_arrays(block, self.manifest.first_pass).items():
                data, crcs = b"".join(arrays.values()), self.directory.crcs[kind]
                if row >= len(crcs) or zlib.crc32(data) != crcs[row]:
                    raise ClusterError("the table changed while it was read", hint="try again")
                if selection is not None and (kind, block.bucket) not in selection:
                    continue
                total = n_parts(len(data))
                names = keys.block(self.manifest.generation, kind, block.bucket, total)
                for number, key in enumerate(names):
                    part = data[number * PART_DATA_BYTES : (number + 1) * PART_DATA_BYTES]
                    yield key, frame(part, number, total)

    def close(self) -> None:
        """Release the table."""
        self.state.catalog.close()


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}
