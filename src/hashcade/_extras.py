"""Optional dependencies: imported where they are used, with a clear error if missing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def require_extra(module: str, extra: str) -> ModuleType:
    """Import ``module``, which the extra ``extra`` of this package installs.

    If it is missing, the ``ImportError`` names the ``pip install`` to run. Import errors inside
    an installed module are raised unchanged.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # error.name is the missing module: this one, or one of its parent packages.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise _missing(module.partition(".")[0], extra) from None


def check_extras(**extras: str) -> None:
    """Raise one ``ImportError`` for all packages that are missing, without importing them.

    For each package the extra that installs it: ``torch="train"``.
    """
    missing = [package for package in extras if find_spec(package) is None]
    if missing:
        names = ",".join(dict.fromkeys(extras[package] for package in missing))
        raise _missing(" and ".join(missing), names, verb="are" if len(missing) > 1 else "is")


def _missing(packages: str, extra: str, *, verb: str = "is") -> ImportError:
    return ImportError(
        f"{packages} {verb} not installed; run: pip install 'hashcade[{extra}]'", name=packages
    )
