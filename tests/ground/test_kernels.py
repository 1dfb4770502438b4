"""Compilation is announced in one line, and only if something is compiled."""

import subprocess
import sys

import numba
import numpy as np
import pytest

from hashcade import _compiler, _kernels

FIRST_SEARCH = """
import time
start = time.perf_counter()
import numpy as np
from hashcade import CodeShape, HashIndex
index = HashIndex.build([1, 2], np.eye(2), shape=CodeShape(width=2, depth=2))
index.search(np.eye(2), bucket_ids=[1, 2], n_neighbors=1)
print(time.perf_counter() - start)
"""


@pytest.fixture
def announced(monkeypatch):
    announce = _kernels._Announce()
    monkeypatch.setattr(_kernels._announce, "on_start", announce.on_start)
    return announce


@pytest.fixture
def uncached(monkeypatch):
    def no_place(function):
        raise RuntimeError

    monkeypatch.setattr(_kernels, "_Cache", no_place)


def compile_one(module):
    def function(x):
        return x + 1

    function.__module__ = module
    compiled = _kernels.kernel(cache=False)(function)
    return [compiled(1), compiled(1.5)]  # two compilations


def test_one_line_says_what_happens_and_how_long(announced, capsys):
    assert compile_one("hashcade.example") == [2, 2.5]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "compiling" in lines[0]
    assert " s " in lines[0]
    assert "hashcade warmup" in lines[0]
    assert announced.announced


def test_kernels_of_others_are_not_ours_to_announce(announced, capsys):
    compile_one("somebody.else")
    assert capsys.readouterr().err == ""


def test_a_process_with_cached_kernels_says_nothing():
    from hashcade.index import warmup

    warmup()
    done = subprocess.run(
        [sys.executable, "-c", FIRST_SEARCH],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""


def test_a_helper_is_compiled_for_types_and_not_for_values(uncached):
    @_kernels.helper()
    def plus_one(x):
        return x + 1

    @_kernels.kernel()
    def run(n):
        return plus_one(0) + plus_one(n)

    assert run(3) == 5
    assert len(plus_one.signatures) == 1


def test_signatures_found_with_other_flags_are_not_mixed_up(uncached):
    def largest(x, y):
        return max(x, y)

    for fast in (True, False, True):
        compiled = _kernels.kernel(fastmath=fast)(largest)
        assert compiled(1.0, 2.0) == 2.0
        assert ("fcmp fast" in next(iter(compiled.inspect_llvm().values()))) == fast


def test_functions_of_others_are_compiled_as_ever(uncached):
    def size(n):
        return np.empty(n).size

    assert _kernels.kernel()(size)(3) == 3
    n_signatures = len(_compiler._signatures)
    assert n_signatures > 0
    assert numba.njit(size)(3) == 3
    assert len(_compiler._signatures) == n_signatures
