"""numba's compiler, less what our functions do not need of it: a quarter of its time.

Half of the time is numba's own Python code: it tries dozens of templates for every ``a + b``, and
looks for closures, lists and array expressions that our functions do not have. The other half is
LLVM, which by default optimises each function once for every level of calls above it.

All of it applies to functions with :class:`_Flags` alone: those of others are compiled as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import numba
from numba.core import codegen, compiler, target_extension, targetconfig
from numba.core.types import functions, unliteral

__all__ = ["CachedCode", "HelperCompiler", "KernelCompiler", "make_own"]

_codegen: Any = codegen  # without type information
_compiler: Any = compiler
_functions: Any = functions
_extension: Any = target_extension
_stack: Any = targetconfig.ConfigStack

# Passes for what our functions do not have: with, closures, generated functions, functions to be
# inlined as source, loops over tuples, array expressions, exceptions with arguments.
_SKIPPED = {
    "WithLifting", "InlineClosureLikes", "RewriteDynamicRaises", "MakeFunctionToJitFunction",
    "InlineInlinables", "FindLiterallyCalls", "LiteralUnroll", "LiteralPropagationSubPipelinePass",
    "InlineOverloads", "NopythonRewrites", "DumpParforDiagnostics",
}  # fmt: skip
_INHERITED = ("nrt", "fastmath", "error_model", "forceinline")  # by what a function calls


class _Flags(_compiler.Flags):  # type: ignore[misc]
    """Flags of our functions, equal if numba's own functions come out equal below them."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(type(self))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, _Flags)
            and all(getattr(self, name) == getattr(other, name) for name in _INHERITED)
        )


def _with_flags(dispatcher: Any) -> Any:
    compile_function = getattr(dispatcher, "_compiler")  # noqa: B009
    setattr(compile_function, "_customize_flags", _Flags)  # noqa: B010  (a copy of those it gets)
    return dispatcher


def make_own(dispatcher: Any) -> Any:
    """Mark a function as one of ours; kernels that call it get it for types, never for values."""
    resolve = dispatcher.get_call_template
    dispatcher.get_call_template = lambda args, kws: resolve(tuple(map(unliteral, args)), kws)
    # No types of other packages: to look for them reads what is installed. Compilation does, too.
    setattr(dispatcher, "_compilation_chain_init_hook", lambda: None)  # noqa: B010
    return _with_flags(dispatcher)


class KernelCompiler(_compiler.Compiler):  # type: ignore[misc]
    """Leaves out what our functions do not need."""

    def define_pipelines(self) -> Any:
        (manager,) = super().define_pipelines()
        passes = [entry for entry in manager.passes if entry[0].__name__ not in _SKIPPED]
        # Branches are pruned three times, with something to inline between: the last is enough.
        prunes = [entry for entry in passes if entry[0].__name__ == "DeadBranchPrune"]
        manager.passes = [entry for entry in passes if entry not in prunes[:-1]]
        manager.finalize()
        return [manager]


class _Part(_codegen.JITCodeLibrary):  # type: ignore[misc]
    """Code to be linked into kernels: it is optimised there, and only there.

    By itself numba optimises every function together with all that it calls, and makes machine
    code of it: a helper once for each level of calls above it.
    """

    codegen = SimpleNamespace(set_env=lambda name, env: None)  # it cannot be run by itself

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

    numba would also parse its LLVM code, to link it into other functions and to see which
    functions are in it: here the former is done when it happens, and the latter is known.
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


def _make_part(state: Any) -> None:
    state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)


class HelperCompiler(KernelCompiler):
    """Compiles a helper into a :class:`_Part`."""

    def define_pipelines(self) -> Any:
        _make_part(self.state)
        return super().define_pipelines()


class _OverloadCompiler(_compiler.Compiler):  # type: ignore[misc]
    """Compiles a function of numba, which may need any pass, into a :class:`_Part`."""

    def define_pipelines(self) -> Any:
        _make_part(self.state)
        return super().define_pipelines()


def _jit_overload(**options: Any) -> Callable[[Any], Any]:
    """``numba.jit`` for what numba compiles of its own, such as ``np.empty``."""
    jit: Any = numba.jit
    if not isinstance(_stack.top_or_none(), _Flags):
        return jit(**options)  # type: ignore[no-any-return]
    part = {"no_cfunc_wrapper": True, "pipeline_class": _OverloadCompiler}
    return lambda function: _with_flags(jit(**{**options, **part})(function))


_resolve = _functions.BaseFunction.get_call_type
_signatures: dict[Any, Any] = {}


def _get_call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
    """Return the signature of a built-in function for some arguments, found once."""
    flags = _stack.top_or_none()
    if not isinstance(flags, _Flags):
        return _resolve(function, context, args, kws)
    key = (id(function), tuple(args), tuple(kws.items()), flags)
    if key not in _signatures:
        signature = _resolve(function, context, args, kws)
        code = function.get_impl_key(signature)
        _signatures[key] = function, signature, code  # with the function: ids are used again
    _, signature, code = _signatures[key]
    # Code for other flags may have come between.
    getattr(function, "_impl_keys")[signature.args] = code  # noqa: B009
    return signature


_functions.BaseFunction.get_call_type = _get_call_type
dict.__setitem__(_extension.jit_registry, _extension.target_registry["cpu"], _jit_overload)
