"""numba's compiler without the features that our functions do not use, in a quarter of the time.

Half of the time is spent in numba's Python code: it tries dozens of templates for every ``a + b``,
and looks for closures, lists and array expressions that our functions do not have. The other half
is LLVM, which by default optimises each function once for every level of calls above it.

This only applies to functions with :class:`_Flags`: those of other packages are not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import numba
from numba.core import codegen, compiler, target_extension, targetconfig
from numba.core.types import functions, unliteral

__all__ = ["CachedCode", "HelperCompiler", "KernelCompiler", "configure"]

_codegen: Any = codegen  # without type information
_compiler: Any = compiler
_functions: Any = functions
_extension: Any = target_extension
_stack: Any = targetconfig.ConfigStack

# Passes for features that our functions do not use: with, closures, generated functions, inlining
# of source, loops over tuples, array expressions, exceptions with arguments.
_UNUSED_PASSES = {
    "WithLifting", "InlineClosureLikes", "RewriteDynamicRaises", "MakeFunctionToJitFunction",
    "InlineInlinables", "FindLiterallyCalls", "LiteralUnroll", "LiteralPropagationSubPipelinePass",
    "InlineOverloads", "NopythonRewrites", "DumpParforDiagnostics",
}  # fmt: skip
_INHERITED_FLAGS = ("nrt", "fastmath", "error_model", "forceinline")  # by callees


class _Flags(_compiler.Flags):  # type: ignore[misc]
    """Flags of our functions; equal if numba compiles its own functions the same way for both."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(type(self))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, _Flags)
            and all(getattr(self, name) == getattr(other, name) for name in _INHERITED_FLAGS)
        )


def _with_flags(dispatcher: Any) -> Any:
    compile_function = getattr(dispatcher, "_compiler")  # noqa: B009
    setattr(compile_function, "_customize_flags", _Flags)  # noqa: B010  (copies the flags it gets)
    return dispatcher


def configure(dispatcher: Any) -> Any:
    """Set our flags; callers specialize the function on types, never on literal values."""
    resolve = dispatcher.get_call_template
    dispatcher.get_call_template = lambda args, kws: resolve(tuple(map(unliteral, args)), kws)
    # No extension types: to find them, numba scans all installed packages. Compiling still does.
    setattr(dispatcher, "_compilation_chain_init_hook", lambda: None)  # noqa: B010
    return _with_flags(dispatcher)


class KernelCompiler(_compiler.Compiler):  # type: ignore[misc]
    """Compiles without the passes that our functions do not need."""

    def define_pipelines(self) -> Any:
        (manager,) = super().define_pipelines()
        passes = [entry for entry in manager.passes if entry[0].__name__ not in _UNUSED_PASSES]
        # Branches are pruned three times, between inlining passes: the last one is enough.
        prunes = [entry for entry in passes if entry[0].__name__ == "DeadBranchPrune"]
        manager.passes = [entry for entry in passes if entry not in prunes[:-1]]
        manager.finalize()
        return [manager]


class _LinkableCode(_codegen.JITCodeLibrary):  # type: ignore[misc]
    """Code to be linked into kernels, and optimised only there.

    By default numba optimises every function together with all that it calls, and generates
    machine code for it: for a helper, once for each level of calls above it.
    """

    codegen = SimpleNamespace(set_env=lambda name, env: None)  # not executable on its own

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        if not self._finalized:
            self.finalize()
        return 0


class CachedCode(_codegen.JITCodeLibrary):  # type: ignore[misc]
    """Machine code from the cache.

    numba would also parse its LLVM bitcode, to link it into other functions and to list its
    functions: here it is only parsed when it is linked, and the list is not needed.
    """

    def __init__(self, codegen: Any, state: Any) -> None:
        name, _, (machine_code, self._bitcode) = state
        super().__init__(codegen, name)
        self.enable_object_caching()
        self._compiled_object = machine_code
        self._finalize_final_module()

    def get_pointer_to_function(self, name: str) -> Any:
        return getattr(self.codegen, "_engine").get_function_address(name)  # noqa: B009

    def _get_module_for_linking(self) -> Any:
        return llvmlite.binding.parse_bitcode(self._bitcode)


def _make_linkable(state: Any) -> None:
    state.library = _LinkableCode(state.targetctx.codegen(), state.func_id.func_qualname)


class HelperCompiler(KernelCompiler):
    """Compiles a helper into a :class:`_LinkableCode`."""

    def define_pipelines(self) -> Any:
        _make_linkable(self.state)
        return super().define_pipelines()


class _OverloadCompiler(_compiler.Compiler):  # type: ignore[misc]
    """Compiles a function of numba, which may need all passes, into a :class:`_LinkableCode`."""

    def define_pipelines(self) -> Any:
        _make_linkable(self.state)
        return super().define_pipelines()


def _jit_overload(**options: Any) -> Callable[[Any], Any]:
    """``numba.jit`` for numba's own functions, such as ``np.empty``."""
    jit: Any = numba.jit
    if not isinstance(_stack.top_or_none(), _Flags):
        return jit(**options)  # type: ignore[no-any-return]
    linkable = {"no_cfunc_wrapper": True, "pipeline_class": _OverloadCompiler}
    return lambda function: _with_flags(jit(**{**options, **linkable})(function))


_resolve = _functions.BaseFunction.get_call_type
_signatures: dict[Any, Any] = {}


def _get_call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
    """Return the signature of a built-in function for its arguments, cached."""
    flags = _stack.top_or_none()
    if not isinstance(flags, _Flags):
        return _resolve(function, context, args, kws)
    key = (id(function), tuple(args), tuple(kws.items()), flags)
    if key not in _signatures:
        signature = _resolve(function, context, args, kws)
        code = function.get_impl_key(signature)
        _signatures[key] = function, signature, code  # keeps the function alive: ids are reused
    _, signature, code = _signatures[key]
    # It may have been overwritten for other flags.
    getattr(function, "_impl_keys")[signature.args] = code  # noqa: B009
    return signature


_functions.BaseFunction.get_call_type = _get_call_type
dict.__setitem__(_extension.jit_registry, _extension.target_registry["cpu"], _jit_overload)
