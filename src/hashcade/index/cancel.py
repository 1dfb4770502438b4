"""Cancellation: a flag that compiled code reads while it runs."""

from __future__ import annotations

import ctypes
from typing import Any

from numba import types
from numba.extending import intrinsic

from hashcade._kernels import helper
from hashcade.errors import Cancelled


class Cancel:
    """Cancels a search, or encoding, from another thread; the call then raises ``Cancelled``.

    Examples
    --------
    >>> from hashcade import Cancel
    >>> cancel = Cancel()
    >>> cancel.set()  # by a timer, or when the client has disconnected
    >>> cancel.is_set()
    True
    """

    def __init__(self) -> None:
        self._flag = ctypes.c_int64(0)
        self.address = ctypes.addressof(self._flag)  # for kernels; valid as long as this object

    def __repr__(self) -> str:
        return f"Cancel(is_set={self.is_set()})"

    def set(self) -> None:
        """Cancel all calls that were given this object, within a tenth of a second; permanent."""
        self._flag.value = 1

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._flag.value != 0

    def check(self, progress: str) -> None:
        """Raise ``Cancelled`` if it was set; ``progress`` is part of the message."""
        if self._flag.value:
            raise Cancelled(f"stopped {progress}")


NEVER = Cancel()  # is never set


def _emit_load(typing_context, address):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        word = context.get_value_type(types.int64).as_pointer()
        # Atomic, so that the compiler may not hoist it out of a loop.
        return builder.load_atomic(builder.inttoptr(args[0], word), "monotonic", 8)

    return types.int64(types.int64), generate


_load: Any = intrinsic(_emit_load)


@helper()
def is_cancelled(address):  # type: ignore[no-untyped-def]
    """Whether the flag at an address is set; it is read each time."""
    return _load(address) != 0
