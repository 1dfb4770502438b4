"""Reading the pickles of official data sets without trusting them.

A pickle is a program: it names functions and has them called. This unpickler answers a handful
of numpy's names with stand-ins and refuses every other name, so that no foreign function is ever
called, not even one of numpy's. What comes out are dicts, lists, strings,
numbers and plain arrays of numbers.

The stand-ins hold their state in slots and refuse to be changed: a pickle can also set
attributes of the objects that it is given (the BUILD instruction), and must not reach anything
that outlives it. Real arrays are handed out only after the last instruction has run.
"""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from experiments.datasets.files import reason
from hashcade.errors import DataError

# Type codes of plain numbers; no objects, no records, no strings.
_NUMBERS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"b1", "f2", "f4", "f8"}


class _RefusedError(Exception):
    """Something in the pickle is outside of what is allowed."""


class _Name:
    """Stand-in for one of numpy's names: can be called, and nothing else."""

    __slots__ = ("_call", "_name")

    def __init__(self, name: str, call: Callable[..., object]) -> None:
        self._name = name
        self._call = call

    def __call__(self, *arguments: object) -> object:
        return self._call(*arguments)

    def __setstate__(self, state: object) -> NoReturn:
        raise _RefusedError(f"changes {self._name}")


class _Type:
    """Stand-in for a numpy dtype: a plain number of 1 to 8 bytes."""

    __slots__ = ("dtype",)

    def __init__(self, code: object, *_: object) -> None:
        text = code.decode("latin1") if isinstance(code, bytes) else code
        if not isinstance(text, str) or text.lstrip("<>|=") not in _NUMBERS:
            raise _RefusedError(f"has an array of type {text!r}")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        # (version, byte order, subtype, names, fields, itemsize, alignment, flags)
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in {"<", ">", "|", "="} or any(part is not None for part in state[2:5]):
            raise _RefusedError("has an array of records")
        self.dtype = np.dtype(f"{order}{self.dtype.str[1:]}")


class _Array:
    """Stand-in for a numpy array of plain numbers."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: npt.NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, data = state
        self.array = _array(data, kind, shape, "F" if is_fortran else "C")


def _array(data: object, kind: object, shape: Any, order: object) -> npt.NDArray[Any]:
    """Make an array over bytes, without copying them."""
    if not isinstance(kind, _Type) or not isinstance(data, (bytes, bytearray)):
        raise _RefusedError("has an array that is not made of plain numbers")
    sides = tuple(shape)
    if not all(type(side) is int and side >= 0 for side in sides):
        raise _RefusedError(f"has an array of shape {sides!r}")
    if math.prod(sides) * kind.dtype.itemsize != len(data):
        raise _RefusedError(f"has an array of shape {sides} with {len(data)} bytes")
    flat = np.frombuffer(data, kind.dtype) if data else np.empty(0, kind.dtype)
    return flat.reshape(sides, order="F" if order in {"F", b"F"} else "C")


def _reconstruct(array_type: object, *_: object) -> _Array:
    if not isinstance(array_type, _Name) or array_type._name != "numpy.ndarray":
        raise _RefusedError("has an array of a type other than numpy.ndarray")
    return _Array()


def _from_buffer(data: object, kind: object, shape: object, order: object = "C") -> _Array:
    result = _Array()
    result.array = _array(data, kind, shape, order)
    return result


def _scalar(kind: object, data: object) -> object:
    return _array(data, kind, (1,), "C")[0].item()


def _encode(text: object, encoding: object) -> bytes:
    """Bytes, as Python 3 writes them for Python 2."""
    if not isinstance(text, str) or encoding not in {"latin1", "latin-1"}:
        raise _RefusedError("calls _codecs.encode on something other than bytes")
    return text.encode("latin1")


def _not_called(*_: object) -> NoReturn:
    raise _RefusedError("calls numpy.ndarray")


_ALLOWED: dict[str, Callable[..., object]] = {
    "numpy.ndarray": _not_called,
    "numpy.dtype": _Type,
    "_codecs.encode": _encode,
}
for _core in ("numpy.core", "numpy._core"):  # before and after numpy 2
    _ALLOWED[f"{_core}.multiarray._reconstruct"] = _reconstruct
    _ALLOWED[f"{_core}.multiarray.scalar"] = _scalar
    _ALLOWED[f"{_core}.numeric._frombuffer"] = _from_buffer


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> _Name:
        name = f"{module_name}.{global_name}"
        if name not in _ALLOWED:
            raise _RefusedError(f"asks for {name}")
        return _Name(name, _ALLOWED[name])  # a new one each time: nothing to be kept

    def persistent_load(self, pid: object, /) -> NoReturn:
        raise _RefusedError("refers to objects outside of it")


def load_plain_pickle(stream: BinaryIO, source: str) -> dict[str, Any]:
    """Read a pickled dict of plain values and numeric arrays; nothing of it is executed.

    Keys become strings, byte strings of Python 2 stay bytes, and arrays are read-only. Anything
    else is a ``DataError``. A pickle can still ask for more memory than there is.
    """
    try:
        value = _Unpickler(stream, encoding="bytes").load()
    except _RefusedError as refused:
        raise DataError(
            f"{source}: the pickle {refused}, which is not allowed; "
            "only dicts, lists, strings, numbers and numeric numpy arrays are read"
        ) from None
    except Exception as error:  # a damaged pickle can fail in any way at all
        raise DataError(f"{source}: not a readable pickle, or damaged {reason(error)}") from None
    if not isinstance(value, dict):
        raise DataError(f"{source}: the pickle holds {type(value).__name__}, must be a dict")
    return {_text(key, source): _finished(item, source) for key, item in value.items()}


def _text(key: object, source: str) -> str:
    if isinstance(key, bytes):
        key = key.decode("latin1")
    if not isinstance(key, str):
        raise DataError(f"{source}: the pickle has the key {key!r}, keys must be strings")
    return sys.intern(key)


def _finished(item: object, source: str) -> object:
    """Exchange stand-ins for arrays; plain lists hold none and are not searched deeper."""
    if isinstance(item, _Array):
        if item.array is None:
            raise DataError(f"{source}: the pickle has an array without content")
        return item.array
    if isinstance(item, (_Name, _Type)):
        raise DataError(f"{source}: the pickle has a function or a type where data belongs")
    return item
