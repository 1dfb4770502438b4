"""A kernel that was compiled before one of its helpers changed is not used again."""

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
from hashcade._kernels import kernel
from copied.helpers import twice


@kernel()
def run(x):
    return twice(x) + 1
""",
}


def run_kernel(folder: Path) -> int:
    code = "from copied.kernels import run; print(run(5))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_a_change_of_a_helper_in_another_file_is_seen(tmp_path):
    package = tmp_path / "copied"
    package.mkdir()
    for name, text in PACKAGE.items():
        (package / name).write_text(text.replace("{factor}", "2"))
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
