"""Arrays with addresses from the beginning, and memory where something was written to."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE = mmap.PAGESIZE


class Reserved:
    """An array of ``n`` entries of a kind; a page of it is there once it is written to."""

    def __init__(self, n: int, kind: np.dtype[Any]) -> None:
        self.entry_bytes = kind.itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        self._memory = mmap.mmap(-1, max(n * self.entry_bytes, 1), flags=flags)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):  # else the first byte of a block would take 2 MB
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.array: npt.NDArray[Any] = np.frombuffer(self._memory, kind.newbyteorder("="), n)

    def pages(self, start: int, stop: int) -> tuple[int, int]:
        """The first page of entries start..stop - 1, and that after the last."""
        return start * self.entry_bytes // PAGE, -(-stop * self.entry_bytes // PAGE)

    def entries(self, page: int) -> tuple[int, int]:
        """The first entry that has a part of this page, and the first that begins after it."""
        return page * PAGE // self.entry_bytes, -(-(page + 1) * PAGE // self.entry_bytes)

    def give_back(self, first_page: int, end_page: int) -> None:
        """Free the memory of pages."""
        if end_page > first_page:
            place = first_page * PAGE
            length = min((end_page - first_page) * PAGE, len(self._memory) - place)
            self._memory.madvise(mmap.MADV_DONTNEED, place, length)
