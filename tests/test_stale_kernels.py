"""Kernels from the cache: what they need, what may follow them, and when they are not used."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

PACKAGE = {
    "__init__.py": "",
    "helpers.py": """
from hashcade._kernels import helper


@helper()
def twice(x):
    return {factor} * x
""",
    "kernels.py": """
import numpy as np

from hashcade._kernels import kernel
from copied.helpers import twice


@kernel()
def run(x):
    return twice(x) + 1


@kernel()
def run_all(xs):
    out = np.empty(len(xs), np.int64)
    for i in range(len(xs)):
        out[i] = run(xs[i])
    return out
""",
}


def write_package(folder: Path) -> Path:
    package = folder / "copied"
    package.mkdir()
    for name, text in PACKAGE.items():
        (package / name).write_text(text.replace("{factor}", "2"))
    return package


def run_code(folder: Path, code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def run_kernel(folder: Path) -> int:
    return int(run_code(folder, "from copied.kernels import run; print(run(5))"))


def test_a_change_of_a_helper_in_another_file_is_seen(tmp_path):
    package = write_package(tmp_path)
    assert run_kernel(tmp_path) == 11
    cached = list((package / "__pycache__").glob("*.nbi"))
    assert cached
    assert run_kernel(tmp_path) == 11  # from the cache
    helpers = package / "helpers.py"
    helpers.write_text(PACKAGE["helpers.py"].replace("{factor}", "3"))
    later = cached[0].stat().st_mtime + 10
    os.utime(helpers, (later, later))
    importlib.invalidate_caches()
    assert run_kernel(tmp_path) == 16


def test_a_kernel_from_the_cache_runs_without_the_compiler(tmp_path):
    write_package(tmp_path)
    code = """
import sys, numpy as np
from copied.kernels import run_all
print(run_all(np.array([5, 6])).tolist(), "numba.np.arraymath" in sys.modules)
"""
    assert run_code(tmp_path, code) == "[11, 13] True\n"  # compiled
    assert run_code(tmp_path, code) == "[11, 13] False\n"


def test_what_is_compiled_after_a_kernel_from_the_cache_works(tmp_path):
    """A kernel that calls it, and a function of somebody else with all that numba knows."""
    write_package(tmp_path)
    assert run_kernel(tmp_path) == 11
    code = """
import numba, numpy as np
from copied.kernels import run, run_all
assert run(5) == 11 and sum(run.stats.cache_hits.values()) == 1
print(run_all(np.array([5, 6])).tolist(), sum(run_all.stats.cache_hits.values()))
print(numba.njit(lambda a, b: (a @ b).sum())(np.eye(2), np.eye(2)))
"""
    assert run_code(tmp_path, code) == "[11, 13] 0\n2.0\n"
