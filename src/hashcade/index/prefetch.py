"""Reading ahead in mapped files: the system is told what a search is about to read.

Left to itself it reads ahead at every page that is missing, by what the disk is set to, here a few
pages and there megabytes. With codes few vectors of a block are read, so for these files that is
off, and the kernel asks for the codes of a block at once, then for the vectors that it needs.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numba import types

from hashcade._kernels import helper

HAS_ADVICE = hasattr(mmap, "MADV_RANDOM")  # not on Windows
_PAGE = mmap.PAGESIZE
_PIECE = 1 << 17  # of a longer part the system may read no more than the beginning
_WILL_NEED = mmap.MADV_WILLNEED if HAS_ADVICE else 0
_signature: Any = types.intc(types.intp, types.intp, types.intc)
_madvise: Any = types.ExternalFunction("madvise", _signature)
_signature = types.intc(types.intp, types.intp, types.intp)
_mincore: Any = types.ExternalFunction("mincore", _signature)


@helper()
def will_read(address, size):  # type: ignore[no-untyped-def]
    """Have the pages of a part of a file read, all at once; returns before they are there."""
    first, end = address & ~(_PAGE - 1), address + size
    for at in range(first, end, _PIECE):
        _madvise(at, min(_PIECE, end - at), _WILL_NEED)


@helper()
def will_read_rows(address, row_size, start, stop, rows, k, n_rows):  # type: ignore[no-untyped-def]
    """The same for ``rows[k, :n_rows]``, among rows start..stop - 1, where they are not there."""
    first = (address + start * row_size) & ~(_PAGE - 1)
    resident = np.ones((address + stop * row_size - first) // _PAGE + 1, np.uint8)
    _mincore(first, address + stop * row_size - first, resident.ctypes.data)
    for j in range(n_rows):
        at = address + rows[k, j] * row_size - first
        if resident[at // _PAGE] & 1 == 0:
            will_read(first + at, row_size)
