"""Systems that lack what Linux has: macOS without CPU affinity, Windows without fcntl."""

import subprocess
import sys

import pytest

WINDOWS = "import sys\nsys.modules['fcntl'] = None"  # importing it fails from here on
MACOS = "import os\nfor name in ('sched_getaffinity', 'sched_setaffinity'):\n    delattr(os, name)"
USE = """
import tempfile
import numpy as np
from hashcade import CodeShape, HashIndex
index = HashIndex.build([1, 2], np.eye(2), shape=CodeShape(width=2, depth=2))
assert index.search(np.eye(2), bucket_ids=[1, 2], n_neighbors=1).ids.tolist() == [[0], [1]]
"""
SERVE = """
from hashcade import HashTable
from hashcade.serve import ServeSettings, create_app
from pathlib import Path
folder = Path(tempfile.mkdtemp()) / "my.table"
HashTable.from_parts(None, index).save(folder)
create_app(ServeSettings(table=folder, read_only=True))
"""


def run(*parts):
    command = [sys.executable, "-c", "\n".join(parts)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_index_is_imported_and_searched_without_fcntl():
    done = run(WINDOWS, USE)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="takes away what Linux alone has")
def test_index_and_service_do_without_cpu_affinity():
    done = run(MACOS, USE, SERVE)
    assert done.returncode == 0, done.stderr
