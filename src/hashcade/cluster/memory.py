"""Arrays with reserved address space, whose memory is allocated page by page."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE = mmap.PAGESIZE


class SparseArray:
    """An array of ``n`` entries; a page takes memory once it is written to."""

    def __init__(self, n: int, dtype: np.dtype[Any]) -> None:
        self.entry_bytes = dtype.itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        self._memory = mmap.mmap(-1, max(n * self.entry_bytes, 1), flags=flags)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):  # else the first byte of a block would take 2 MB
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.array: npt.NDArray[Any] = np.frombuffer(self._memory, dtype.newbyteorder("="), n)

    def pages(self, start: int, stop: int) -> tuple[int, int]:
        """The first page of entries start..stop - 1, and the page after the last."""
        return start * self.entry_bytes // PAGE, -(-stop * self.entry_bytes // PAGE)

    def entries(self, page: int) -> tuple[int, int]:
        """The first entry that overlaps this page, and the first that starts after it."""
        return page * PAGE // self.entry_bytes, -(-(page + 1) * PAGE // self.entry_bytes)

    def free(self, first_page: int, end_page: int) -> None:
        """Free the memory of pages."""
        if end_page > first_page:
            start = first_page * PAGE
            length = min((end_page - first_page) * PAGE, len(self._memory) - start)
            self._memory.madvise(mmap.MADV_DONTNEED, start, length)
