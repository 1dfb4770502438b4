"""Names that are imported when they are first used (PEP 562).

``import hashcade`` must stay cheap: a program that only reads an index pays neither for the
compiler behind the kernels nor for torch. A package therefore lists where its public names
live, and the module that defines a name is imported when the name is first asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module


def lazy_names(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package; ``homes``: the names of each module."""
    module_of = {name: f"{package}.{module}" for module in homes for name in homes[module]}

    def __getattr__(name: str) -> object:  # noqa: N807
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        # Stored in the package, so that the next access does not come here again.
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807
        return sorted({*vars(sys.modules[package]), *module_of})

    return __getattr__, __dir__
