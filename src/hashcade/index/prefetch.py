"""Prefetching from mapped files: the system is told what a search is about to read.

By default the system reads ahead at every page fault, a few pages or megabytes, as the disk is
configured. With codes few vectors of a block are read, so read-ahead is turned off for these files,
and the kernel requests the codes of a block at once, and then the vectors that it needs.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numba import types

from hashcade._kernels import helper

HAS_ADVICE = hasattr(mmap, "MADV_RANDOM")  # not on Windows
_PAGE = mmap.PAGESIZE
_PIECE = 1 << 17  # of a longer range the system may read only the beginning
_WILL_NEED = mmap.MADV_WILLNEED if HAS_ADVICE else 0
_signature: Any = types.intc(types.intp, types.intp, types.intc)
_madvise: Any = types.ExternalFunction("madvise", _signature)
_signature = types.intc(types.intp, types.intp, types.intp)
_mincore: Any = types.ExternalFunction("mincore", _signature)


@helper()
def will_read(address, size):  # type: ignore[no-untyped-def]
    """Request all pages of a range of a file at once; returns before they are read."""
    first, end = address & ~(_PAGE - 1), address + size
    for piece in range(first, end, _PIECE):
        _madvise(piece, min(_PIECE, end - piece), _WILL_NEED)


@helper()
def will_read_rows(address, row_size, start, stop, rows, k, n_rows):  # type: ignore[no-untyped-def]
    """The same for ``rows[k, :n_rows]``, among rows start..stop - 1, if not in memory yet."""
    first = (address + start * row_size) & ~(_PAGE - 1)
    resident = np.ones((address + stop * row_size - first) // _PAGE + 1, np.uint8)
    _mincore(first, address + stop * row_size - first, resident.ctypes.data)
    for j in range(n_rows):
        offset = address + rows[k, j] * row_size - first
        if resident[offset // _PAGE] & 1 == 0:
            will_read(first + offset, row_size)
