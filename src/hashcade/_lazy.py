"""Lazy imports of public names (PEP 562).

``import hashcade`` must stay cheap: a program that only reads an index should import neither the
compiler of the kernels nor torch. A package lists the modules of its public names, and a module is
imported when one of its names is first accessed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module


def lazy_names(
    package: str, modules: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package; ``modules`` maps modules to names."""
    module_of = {name: f"{package}.{module}" for module in modules for name in modules[module]}

    def __getattr__(name: str) -> object:  # noqa: N807
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        # Stored in the package: the next access does not call this function.
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807
        return sorted({*vars(sys.modules[package]), *module_of})

    return __getattr__, __dir__
