"""The fuzzer, a few hundred files of every format at a time; see ``fuzz.py`` for more of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.fuzz import FORMATS, Fuzzer

QUICK = 30
ROOT = Path(__file__).parents[2]  # where ``tests`` can be imported


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    pytest.importorskip("torch")
    return Fuzzer(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and measured as on Linux")
@pytest.mark.promise("fuzz", "files of every format, changed at random, with right checksums")
@pytest.mark.parametrize("name", FORMATS)
def test_changed_files_are_refused_or_answer_as_their_content_says(fuzzer, name, cases):
    _, failures = fuzzer.run(name, 0, QUICK)
    cases.add(QUICK)
    assert failures == []


@pytest.mark.slow
@pytest.mark.promise("fuzz", "files of every format, changed at random, with right checksums")
def test_many_changed_files(tmp_path, cases):
    """As many as ``HASHCADE_FUZZ_CASES`` says; kernels check the bounds of arrays."""
    n = int(os.environ.get("HASHCADE_FUZZ_CASES", "20000"))
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.fuzz", "--cases", str(n)],
        cwd=ROOT, capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    cases.add(n)
