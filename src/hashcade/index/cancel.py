"""Work that can be stopped: a flag that compiled code reads while it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from hashcade._kernels import helper
from hashcade.errors import Cancelled


class Cancel:
    """Stops a search, or encoding, from another thread; the call then raises ``Cancelled``.

    Examples
    --------
    >>> from hashcade import Cancel
    >>> cancel = Cancel()
    >>> cancel.set()  # by a timer, or when nobody waits for the answer any more
    >>> cancel.is_set()
    True
    """

    def __init__(self) -> None:
        self._flag = np.zeros(1, dtype=np.int64)
        self.address = int(self._flag.ctypes.data)  # for kernels, while this object lives

    def __repr__(self) -> str:
        return f"Cancel(is_set={self.is_set()})"

    def set(self) -> None:
        """Stop what was given this, within a tenth of a second; for good."""
        self._flag[0] = 1

    def is_set(self) -> bool:
        """Whether it was set."""
        return bool(self._flag[0])

    def check(self, progress: str) -> None:
        """Raise ``Cancelled`` if it was set, with how far the work has come."""
        if self._flag[0]:
            raise Cancelled(f"stopped {progress}")


NEVER = Cancel()  # for work that nobody stops


def _emit_load(typing_context, address):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        word = context.get_value_type(types.int64).as_pointer()
        # Atomic, so that the compiler may not take it out of a loop.
        return builder.load_atomic(builder.inttoptr(args[0], word), "monotonic", 8)

    return types.int64(types.int64), generate


_load: Any = intrinsic(_emit_load)


@helper()
def is_cancelled(address):  # type: ignore[no-untyped-def]
    """Whether the flag at an address was set; it is read each time."""
    return _load(address) != 0
