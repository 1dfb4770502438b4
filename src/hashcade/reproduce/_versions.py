"""What figures and times depend on besides settings: versions and the machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hashcade._version import __version__


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of what it computes with."""
    found = {"python": platform.python_version(), "hashcade": __version__}
    for name in ("numpy", "numba", "torch", "scikit-learn", "ortools"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str]:
    """Processor and cores; nothing that names the machine."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text("utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
                break
    return {"cpu": model, "cores": str(os.cpu_count())}
