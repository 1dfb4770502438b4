"""Everything that can be wrong with an index, found by reading all of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hashcade.errors import StorageError
from hashcade.index._blocks import StoredCheck, structure_problems
from hashcade.index._snapshot import Snapshot
from hashcade.index._store import read_manifest
from hashcade.index._table import Int64s, View


def problems(snapshot: Snapshot, home: Path | None) -> list[str]:
    """Say what is wrong with the state in use, and with the manifest of where it is stored."""
    found: list[str] = []
    if home is not None:
        try:
            manifest = read_manifest(home)
            found += [f"{home / n} is missing" for n in manifest.files() if not (home / n).exists()]
        except OSError as error:
            found.append(f"{home}: the manifest cannot be read: {error.strerror}")
        except StorageError as error:
            found.append(str(error))
    all_ids = []
    for number, view in enumerate(snapshot.views):
        where = f"segment {number}"
        check = view.segment.check
        if isinstance(check, StoredCheck):
            where = str(check.path)
            damage = check.problems(view.segment)
            found += damage
            if damage:
                continue
        found += [f"{where}: {p}" for p in _view_problems(view, snapshot)]
        all_ids.append(_different(view.segment.ids[view.live_entries()]))
    ids = np.concatenate(all_ids) if all_ids else np.empty(0, dtype=np.int64)
    if len(_different(ids)) != len(ids):
        found.append("an id is in several segments")
    if len(ids) and (ids.min() < 0 or ids.max() >= snapshot.next_id):
        found.append(f"ids must be in 0..{snapshot.next_id - 1}")
    return found


def _different(ids: Int64s) -> Int64s:
    ordered = np.sort(ids)
    return ordered[np.r_[True, ordered[1:] != ordered[:-1]]] if len(ids) else ordered


def _view_problems(view: View, snapshot: Snapshot) -> list[str]:
    segment = view.segment
    found = structure_problems(segment, snapshot.shape.n_buckets, snapshot.dim)
    if found:
        return found
    for at in range(0, segment.n_entries, 65536):
        if not np.isfinite(segment.vectors[at : at + 65536]).all():
            found.append(f"vectors has NaN or infinite values in entries {at}..")
            break
    if len(view.dead) not in (0, segment.n_entries):
        found.append(f"{len(view.dead)} removal marks for {segment.n_entries} entries")
        return found
    n_live = len(_different(segment.ids[view.live_entries()]))
    if n_live != view.n_items:
        found.append(f"{n_live} items are there, must be {view.n_items}")
    return found
