"""``import hashcade`` is cheap: what is expensive is imported when it is needed."""

import statistics
import subprocess
import sys
import time

import pytest


def run(code):
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout, time.perf_counter() - start


def imported_by(code):
    out, _ = run(f"import sys\n{code}\nprint(*sys.modules)")
    return {name.partition(".")[0] for name in out.split()}


def test_package_alone_imports_nothing_expensive():
    modules = imported_by("import hashcade")
    assert "hashcade" in modules
    assert not modules & {"numpy", "numba", "llvmlite", "torch", "matplotlib"}


def test_codes_without_the_solver_do_not_import_numba():
    modules = imported_by(
        "from hashcade import CodeShape, code_energy, expected_speedup, relabel_by_code"
    )
    assert "numpy" in modules
    assert not modules & {"numba", "llvmlite", "torch"}


def test_a_batch_build_needs_no_torch():
    modules = imported_by("from hashcade.batch import build_table")
    assert "numpy" in modules
    assert not modules & {"torch", "ray", "pyarrow", "fsspec"}


def test_serving_stored_vectors_needs_no_torch():
    modules = imported_by("from hashcade.serve import run, create_app, Client, ServeSettings")
    assert "fastapi" in modules
    assert "torch" not in modules


def test_loaders_import_pillow_and_pyarrow_only_when_used():
    modules = imported_by("from hashcade.data import *")
    assert "numpy" in modules
    assert not modules & {"numba", "llvmlite", "torch", "PIL", "pyarrow"}


@pytest.mark.alone
def test_import_takes_less_than_three_tenths_of_a_second():
    # Interleaved with the bare interpreter, so that a busy machine weighs on both.
    extra = []
    for _ in range(5):
        _, bare = run("pass")
        _, loaded = run("import hashcade")
        extra.append(loaded - bare)
    assert statistics.median(extra) < 0.3
