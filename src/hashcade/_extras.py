"""Optional dependencies: imported where they are used, and missed with one clear line."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def require_extra(module: str, extra: str) -> ModuleType:
    """Import ``module``, which comes with the extra ``extra`` of this package.

    Parameters
    ----------
    module
        Full name of the module, for example ``"torch"`` or ``"safetensors.numpy"``.
    extra
        The extra that installs it, for example ``"train"``.

    Raises
    ------
    ImportError
        If it is not installed; the message names the ``pip install`` to run. A module that is
        installed but fails on an import of its own keeps its own error: installing the extra
        again would not mend that.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # error.name is what was missing: the module, or a package on the way to it.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise _missing(module, extra) from None


def check_extra(module: str, extra: str) -> None:
    """Raise the same ``ImportError`` if ``module`` is not installed, without importing it.

    For what takes long to import, and is needed only after other things that take long.
    """
    if find_spec(module.partition(".")[0]) is None:
        raise _missing(module, extra)


def _missing(module: str, extra: str) -> ImportError:
    package = module.partition(".")[0]
    return ImportError(
        f"{package} is not installed; run: pip install 'hashcade[{extra}]'", name=package
    )
