"""Compiled code: one decorator, and one line on stderr when compilation takes time.

Kernels are compiled when they are first called and cached beside their source, so a process
compiles only what no process before it has. ``hashcade warmup`` does it beforehand. What lies
beside the source is used also by those who may not write there; else kernels are cached in
``NUMBA_CACHE_DIR`` or in the user's cache directory, and if nothing can be written they are
compiled at every start.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core import caching, config, event
from numba.core.runtime import _nrt_python  # type: ignore[attr-defined]
from numpy.typing import NDArray

from hashcade import _compiler
from hashcade._compiler import CachedCode, HelperCompiler, KernelCompiler, make_own

__all__ = ["Floats", "Ints", "cache_folder", "helper", "is_compiled", "kernel", "usable_cores"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def _import_without_scipy() -> None:
    """Import numba's array functions without scipy.linalg, which it needs for matrix products.

    numba imports it to see whether one could be compiled, and once more when one is.
    """
    if "numba.np.arraymath" in sys.modules or importlib.util.find_spec("scipy") is None:
        return
    linalg: Any = importlib.import_module("numba.np.linalg")
    ensure_blas = linalg.ensure_blas
    linalg.ensure_blas = lambda: None
    try:
        arraymath: Any = importlib.import_module("numba.np.arraymath")
        arraymath.ensure_blas = ensure_blas
    finally:
        linalg.ensure_blas = ensure_blas


_caching: Any = caching  # without type information
_config: Any = config
_OPTIONS = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


def kernel(**options: Any) -> Callable[[Any], Any]:
    """``numba.njit`` with a cache on disk, without the GIL, and with numpy's rules for division."""

    def compiler(function: Any) -> Any:
        given = {**_OPTIONS, "pipeline_class": KernelCompiler, **options}
        dispatcher = make_own(numba.njit(**given)(function))
        with suppress(RuntimeError):  # no place for a cache
            # As cache=True does, with places of our own.
            setattr(dispatcher, "_cache", _Cache(function))  # noqa: B010
        return dispatcher

    return compiler


@cache
def _stamp(package: Path) -> str:
    """What cached kernels of a package depend on: its files, numba, and the processor.

    numba itself sees a change in the kernel's own file alone, and would use helpers of old.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    name, features = _config.CPU_NAME, _config.CPU_FEATURES
    if name is None:
        name = llvmlite.binding.get_host_cpu_name()
    if features is None:
        features = llvmlite.binding.get_host_cpu_features().flatten()
    digest.update(f"{name}|{features}".encode())
    for file in sorted([*package.glob("*.py"), Path(__file__), Path(_compiler.__file__)]):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def is_compiled(package: Path) -> bool:
    """Whether kernels of a package are in its cache."""
    folder = cache_folder(package)
    return folder is not None and any(folder.glob(f"*-{_stamp(package)}.*.nbi"))


@cache
def cache_folder(package: Path) -> Path | None:
    """Where kernels of a package are cached; None if nothing can be."""
    own = package / "__pycache__"
    if any(own.glob(f"*-{_stamp(package)}.*.nbi")):
        return own  # compiled beforehand, maybe for those who may not write there
    name = f"hashcade-{package.name}-{hashlib.sha256(bytes(package)).hexdigest()[:16]}"
    places = [own]
    if _config.CACHE_DIR:
        places.insert(0, Path(_config.CACHE_DIR) / name)
    with suppress(RuntimeError):  # no home
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        places.append(Path(home) / "hashcade" / name)
    for place in places:
        with suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=place).close()
            return place
    return None


class _Place:
    """Tells numba where a kernel is cached, and what it depends on."""

    def __init__(self, function: Any, package: Path, folder: Path) -> None:
        self._line, self._package = function.__code__.co_firstlineno, package
        self._folder = folder

    @classmethod
    def from_function(cls, function: Any, file: str) -> _Place | None:
        package = Path(file).parent
        folder = cache_folder(package)
        return None if folder is None else cls(function, package, folder)

    def ensure_cache_path(self) -> None:
        """See that it can be written: else that is an ``OSError``."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return _stamp(self._package)

    def get_disambiguator(self) -> str:
        return f"{self._line}-{_stamp(self._package)}"


@cache
def _offer_memory_functions() -> None:
    """Let machine code find numba's functions for arrays, as numba does before it compiles."""
    for name, address in _nrt_python.c_helpers.items():
        prefix = "" if name.startswith("_") else "NRT_"
        llvmlite.binding.add_symbol(prefix + name, address)


class _CacheImpl(_caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Place,)

    def reduce(self, compiled: Any) -> Any:
        # Environments hold Python objects. Of those of helpers, which are a hundred, most are empty
        # and come with the import of the module that they belong to.
        *state, environments = super().reduce(compiled)
        return (*state, tuple(each for each in environments if each.consts))


class _Cache(_caching.FunctionCache):  # type: ignore[misc]
    """A cache that is never in the way: without it, a kernel is compiled."""

    _impl_class = _CacheImpl

    def load_overload(self, signature: Any, context: Any) -> Any:
        _offer_memory_functions()
        codegen = context.codegen()
        # In place of the context, which would first load all that is needed to compile.
        loader: Any = SimpleNamespace(
            refresh=lambda: None,
            codegen=lambda: loader,
            magic_tuple=codegen.magic_tuple,
            unserialize_library=lambda state: CachedCode(codegen, state),
            get_executable=context.get_executable,
            typing_context=context.typing_context,
        )
        compiled = None
        with suppress(Exception):  # a file that is damaged, or may not be read
            compiled = super().load_overload(signature, loader)
        if compiled is None:
            _import_without_scipy()
        return compiled

    def save_overload(self, signature: Any, data: Any) -> None:
        with suppress(OSError):  # the disk is full, or the package may not be written to
            try:
                super().save_overload(signature, data)
            except OSError:
                raise
            except Exception:  # the list of what is cached is damaged: it starts over
                self.flush()
                super().save_overload(signature, data)


def helper(**options: Any) -> Callable[[Any], Any]:
    """A function that only kernels call: no entry from Python, so less to compile.

    It is cached as a part of the kernels that call it.
    """
    own = {"no_cpython_wrapper": True, "pipeline_class": HelperCompiler}
    compiler: Any = numba.njit(**{**_OPTIONS, **own, **options})
    return lambda function: make_own(compiler(function))


@cache
def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Announce(event.Listener):
    """Says once per process that compilation has begun."""

    said = False

    def on_start(self, event: Any) -> None:
        function = getattr(event.data.get("dispatcher"), "py_func", None)
        if not self.said and str(getattr(function, "__module__", "")).startswith("hashcade"):
            self.said = True
            package = Path(function.__code__.co_filename).parent  # type: ignore[union-attr]
            often = "once per installation, about 10 s ('hashcade warmup' does it beforehand)"
            if cache_folder(package) is None:
                often = (
                    "at every start: nothing can be cached (run 'hashcade warmup' as a user that"
                    f" may write to {package.parent}, or set NUMBA_CACHE_DIR to a directory that"
                    " can be written to)"
                )
            print(f"hashcade: compiling its kernels, {often}", file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


_announce = _Announce()
event.register("numba:compile", _announce)  # type: ignore[no-untyped-call]
