"""Changes applied to an index: a group that is new, or all of a journal once more."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hashcade.index._index import HashIndex
from hashcade.serve._records import Add, Change

Prepare = Callable[[HashIndex, int], Change]  # checks a change; the int is the first free id


@dataclass(eq=False)
class Waiting:
    """A change that somebody waits for."""

    prepare: Prepare
    future: Future[npt.NDArray[np.int64]]


def apply_group(trial: HashIndex, group: list[Waiting]) -> list[tuple[Waiting, Change]]:
    """Apply changes to a copy of the index, and return those that fit; the others are told."""
    done: list[tuple[Waiting, Change]] = []
    additions: list[tuple[Waiting, Add]] = []
    next_id = trial._snapshot.next_id
    for waiting in group:
        try:
            change = waiting.prepare(trial, next_id)
            if isinstance(change, Add):
                additions.append((waiting, change))
                next_id = max(next_id, int(change.ids.max(initial=-1)) + 1)
                continue
            done += _added(trial, additions)
            additions = []
            trial.remove(change.ids)
            done.append((waiting, change))
        except Exception as error:  # of this change alone: the copy is as before
            waiting.future.set_exception(error)
    return done + _added(trial, additions)


def _added(trial: HashIndex, additions: list[tuple[Waiting, Add]]) -> list[tuple[Waiting, Change]]:
    """Add items of several changes at once, which costs little more than adding those of one."""
    if len(additions) > 1:
        parts = [change for _, change in additions]
        labels = [part.labels for part in parts if part.labels is not None]
        try:
            trial.add(
                np.concatenate([part.bucket_ids for part in parts]),
                np.concatenate([part.vectors for part in parts]),
                np.concatenate([part.ids for part in parts]),
                np.concatenate(labels) if labels else None,
            )
            return list(additions)
        except Exception:  # an id is there already, or there is no memory for all: find out whose
            pass
    done: list[tuple[Waiting, Change]] = []
    for waiting, change in additions:
        try:
            trial.add(change.bucket_ids, change.vectors, change.ids, change.labels)
            done.append((waiting, change))
        except Exception as error:
            waiting.future.set_exception(error)
    return done


def apply_again(index: HashIndex, changes: list[Change]) -> None:
    """Bring an index to the state after changes, of which it may have a part already.

    The last change that names an item decides.
    """
    final: dict[int, tuple[Add, int] | None] = {}
    for change in changes:
        for row, item in enumerate(change.ids.tolist()):
            final.pop(item, None)  # so that items come in the order of their last addition
            final[item] = (change, row) if isinstance(change, Add) else None
    named = np.fromiter(final, dtype=np.int64, count=len(final))
    index.remove(named[index._has(named)] if len(named) else named)
    rows = [(change, row) for change, row in filter(None, final.values())]
    # Also those that are gone again have used their ids up.
    highest = max(
        (int(c.ids.max()) for c in changes if isinstance(c, Add) and len(c.ids)), default=-1
    )
    if rows:
        labels = [int(c.labels[r]) for c, r in rows if c.labels is not None]
        index.add(
            np.stack([c.bucket_ids[r] for c, r in rows]),
            np.stack([c.vectors[r] for c, r in rows]),
            [int(c.ids[r]) for c, r in rows],
            labels or None,
        )
    index._reserve_ids(highest + 1)
