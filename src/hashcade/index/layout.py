"""The memory layout of an index, as kernels take it: one int64 array of counts and addresses.

One array, because every argument of a call costs time: counts and addresses of the bucket tree, of
the small tree of recent segments, and then a row for each segment. An address of 0 means that there
is no such array. The caller of a kernel keeps the arrays alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from hashcade._kernels import helper

if TYPE_CHECKING:
    from hashcade.index.segment import View
    from hashcade.index.snapshot import BucketTree, Snapshot

# Of the index. N_ITEMS is 0 if every item has one entry: then there are no duplicates to skip.
(
    N_SEGMENTS, MAX_BUCKET_ID, WIDTH, DEPTH, N_ITEMS, ANY_REMOVED,
    N_BUCKETS, BUCKETS, LIVE, ROWS, N_NODES, LEVEL_STARTS, SLOTS, CHILDREN, N_MAIN_SEGMENTS,
    N_RECENT, RECENT, RECENT_LIVE, RECENT_ROWS, N_RECENT_NODES, RECENT_LEVEL_STARTS, RECENT_SLOTS,
    RECENT_CHILDREN, POSITIONS, MARKS, FIRST_SEGMENT,
) = range(26)  # fmt: skip

# Of a segment, from the start of its row; FIRST_ITEM and FIRST_ENTRY count through all segments.
(
    N_ENTRIES, VECTORS, IDS, ITEMS, REMOVED, N_SEGMENT_BUCKETS, OFFSETS, CHECKED,
    FIRST_ITEM, FIRST_ENTRY, CODES, CODE_BOUNDS, MAPPED,
    IS_FLOAT16, VECTORS_AVAILABLE, SEGMENT_LENGTH,
) = range(16)  # fmt: skip

N_MARKS = 4096  # of the buckets of recent segments, see snapshot.Recent


def describe(snapshot: Snapshot) -> npt.NDArray[np.int64]:
    """Return the table of an index."""
    views, shape, recent = snapshot.views, snapshot.shape, snapshot.recent
    table = [
        len(views), shape.n_buckets - 1, shape.width, shape.depth,
        sum(view.segment.n_items for view in views) if snapshot.has_duplicates else 0,
        any(len(view.removed) > 0 for view in views), *snapshot.tree.row, snapshot.n_main_views,
    ]  # fmt: skip
    if recent is None:
        table += [0] * (FIRST_SEGMENT - N_RECENT)
    else:
        table += [*recent.tree.row, _address(recent.positions), _address(recent.marks)]
    first_item = first_entry = 0
    for view in views:
        table += view.row
        table[FIRST_ITEM - SEGMENT_LENGTH] = first_item
        table[FIRST_ENTRY - SEGMENT_LENGTH] = first_entry
        first_item += view.segment.n_items
        first_entry += view.segment.n_entries
    return np.array(table, dtype=np.int64)


def describe_tree(tree: BucketTree) -> list[int]:
    """Return the row of a tree."""
    return [
        len(tree.buckets), _address(tree.buckets), _address(tree.live), _address(tree.rows),
        len(tree.slots), _address(tree.level_starts), _address(tree.slots), _address(tree.children),
    ]  # fmt: skip


def describe_view(view: View) -> list[int]:
    """Return the row of a segment, as if it were the first segment."""
    segment = view.segment
    return [
        segment.n_entries, _address(segment.vectors), _address(segment.ids),
        _address(segment.items), _address(view.removed), len(segment.buckets),
        _address(segment.offsets), _address(segment.check.checked), 0, 0,
        _address(segment.codes), _address(segment.code_bounds), segment.check.mapped,
        segment.vectors.dtype == np.float16, _address(segment.check.vectors_here),
    ]  # fmt: skip


def _address(array: npt.NDArray[Any] | None) -> int:
    if array is None or array.size == 0:
        return 0
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def _emit_pointer(typing_context, address):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


_pointer: Any = intrinsic(_emit_pointer)


@helper()
def segment_row(segment):  # type: ignore[no-untyped-def]
    """Return the position of the row of a segment."""
    return FIRST_SEGMENT + segment * SEGMENT_LENGTH


@helper()
def array_at(address, shape, dtype):  # type: ignore[no-untyped-def]
    """Return the array at an address; a bool is a uint8 as well."""
    return carray(_pointer(address), shape, dtype)


@helper()
def entries_at(table, segment, field, dtype):  # type: ignore[no-untyped-def]
    """Return an array with one value per entry of a segment; empty if the segment has none."""
    base = FIRST_SEGMENT + segment * SEGMENT_LENGTH
    n_entries = table[base + N_ENTRIES] if table[base + field] != 0 else 0
    return array_at(table[base + field], n_entries, dtype)
