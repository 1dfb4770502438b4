"""Compiled kernels: decorators, a cache on disk, and a message when compilation takes time.

Kernels are compiled when they are first called and cached next to their source, for all later
processes. ``hashcade warmup`` compiles them in advance. A cache next to the source is also used if
it is not writable; otherwise kernels are cached in ``NUMBA_CACHE_DIR`` or in the user's cache
directory, and if nothing can be written they are compiled at every start.
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
from llvmlite import ir
from numba import types
from numba.core import caching, config, event
from numba.core.runtime import _nrt_python  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from hashcade import _compiler
from hashcade._compiler import CachedCode, HelperCompiler, KernelCompiler, configure

__all__ = [
    "Floats", "Ints", "cache_folder", "float_of_half", "helper", "is_compiled", "kernel",
    "machine_code", "usable_cores",
]  # fmt: skip

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def _import_without_scipy() -> None:
    """Import numba's array functions without scipy.linalg, which only matrix products need.

    numba imports it to check whether they are available, and again when one is compiled.
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
        settings = {**_OPTIONS, "pipeline_class": KernelCompiler, **options}
        dispatcher = configure(numba.njit(**settings)(function))
        with suppress(RuntimeError):  # no writable cache directory
            # As cache=True does, with our own cache directories.
            setattr(dispatcher, "_cache", _Cache(function))  # noqa: B010
        return dispatcher

    return compiler


def _emit_float_of_half(typing_context, half):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


float_of_half: Any = intrinsic(_emit_float_of_half)  # for kernels: a float16, given by its bits


def machine_code(function: Any) -> Any:
    """The compiled code of a kernel that was called, without numba's dispatcher.

    The dispatcher inspects the types of all arguments to choose a version of the function, which
    takes as long as the rest of a small search. Where the caller ensures the types there is only
    one version. Should there be another one after all, the dispatcher is returned.
    """
    versions = list(function.overloads.values())
    return versions[0].entry_point if len(versions) == 1 else function


@cache
def _stamp(package: Path) -> str:
    """Hash of what cached kernels of a package depend on: its files, numba, and the processor.

    The files of the index count for all: others use its helpers.

    numba itself only checks the file of the kernel, and would miss changes in helpers.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    name, features = _config.CPU_NAME, _config.CPU_FEATURES
    if name is None:
        name = llvmlite.binding.get_host_cpu_name()
    if features is None:
        features = llvmlite.binding.get_host_cpu_features().flatten()
    digest.update(f"{name}|{features}".encode())
    folders = {package, Path(__file__).parent / "index"}
    files = [file for folder in folders for file in folder.glob("*.py")]
    for file in sorted([*files, Path(__file__), Path(_compiler.__file__)]):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def is_compiled(package: Path) -> bool:
    """Whether the kernels of a package are cached."""
    folder = cache_folder(package)
    return folder is not None and any(folder.glob(f"*-{_stamp(package)}.*.nbi"))


@cache
def cache_folder(package: Path) -> Path | None:
    """The cache directory for kernels of a package; None if none is writable."""
    local = package / "__pycache__"
    if any(local.glob(f"*-{_stamp(package)}.*.nbi")):
        return local  # compiled in advance; may be read-only
    name = f"hashcade-{package.name}-{hashlib.sha256(bytes(package)).hexdigest()[:16]}"
    candidates = [local]
    if _config.CACHE_DIR:
        candidates.insert(0, Path(_config.CACHE_DIR) / name)
    with suppress(RuntimeError):  # no home directory
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        candidates.append(Path(home) / "hashcade" / name)
    for folder in candidates:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            return folder
    return None


class _Locator:
    """A cache locator of numba: where a kernel is cached, and what it depends on."""

    def __init__(self, function: Any, package: Path, folder: Path) -> None:
        self._line, self._package = function.__code__.co_firstlineno, package
        self._folder = folder

    @classmethod
    def from_function(cls, function: Any, file: str) -> _Locator | None:
        package = Path(file).parent
        folder = cache_folder(package)
        return None if folder is None else cls(function, package, folder)

    def ensure_cache_path(self) -> None:
        """Create the directory; raises ``OSError`` if that fails."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return _stamp(self._package)

    def get_disambiguator(self) -> str:
        return f"{self._line}-{_stamp(self._package)}"


@cache
def _add_runtime_symbols() -> None:
    """Make numba's runtime functions available to machine code, as numba does to compile."""
    for name, address in _nrt_python.c_helpers.items():
        prefix = "" if name.startswith("_") else "NRT_"
        llvmlite.binding.add_symbol(prefix + name, address)


class _CacheImpl(_caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)

    def reduce(self, compiled: Any) -> Any:
        # Environments hold Python objects. Most of the hundred of helpers are empty, and are
        # created again when their module is imported.
        *state, environments = super().reduce(compiled)
        return (*state, tuple(environment for environment in environments if environment.consts))


class _Cache(_caching.FunctionCache):  # type: ignore[misc]
    """A cache whose errors are ignored: then the kernel is compiled."""

    _impl_class = _CacheImpl

    def load_overload(self, signature: Any, context: Any) -> Any:
        _add_runtime_symbols()
        codegen = context.codegen()
        # Instead of the context, which would first load all that is needed to compile.
        loader: Any = SimpleNamespace(
            refresh=lambda: None,
            codegen=lambda: loader,
            magic_tuple=codegen.magic_tuple,
            unserialize_library=lambda state: CachedCode(codegen, state),
            get_executable=context.get_executable,
            typing_context=context.typing_context,
        )
        compiled = None
        with suppress(Exception):  # damaged or unreadable cache file
            compiled = super().load_overload(signature, loader)
        if compiled is None:
            _import_without_scipy()
        return compiled

    def save_overload(self, signature: Any, data: Any) -> None:
        with suppress(OSError):  # disk full, or read-only
            try:
                super().save_overload(signature, data)
            except OSError:
                raise
            except Exception:  # damaged cache index: start over
                self.flush()
                super().save_overload(signature, data)


def helper(**options: Any) -> Callable[[Any], Any]:
    """``numba.njit`` for functions that only kernels call: no entry from Python, less to compile.

    They are cached as a part of the kernels that call them.
    """
    settings = {"no_cpython_wrapper": True, "pipeline_class": HelperCompiler}
    compiler: Any = numba.njit(**{**_OPTIONS, **settings, **options})
    return lambda function: configure(compiler(function))


@cache
def usable_cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Announce(event.Listener):
    """Prints a message when the first kernel of a process is compiled."""

    announced = False

    def on_start(self, event: Any) -> None:
        function = getattr(event.data.get("dispatcher"), "py_func", None)
        if not self.announced and str(getattr(function, "__module__", "")).startswith("hashcade"):
            self.announced = True
            package = Path(function.__code__.co_filename).parent  # type: ignore[union-attr]
            frequency = "once per installation, about 10 s ('hashcade warmup' does it beforehand)"
            if cache_folder(package) is None:
                frequency = (
                    "at every start: nothing can be cached (run 'hashcade warmup' as a user that"
                    f" may write to {package.parent}, or set NUMBA_CACHE_DIR to a directory that"
                    " can be written to)"
                )
            print(f"hashcade: compiling its kernels, {frequency}", file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


_announce = _Announce()
event.register("numba:compile", _announce)  # type: ignore[no-untyped-call]
