"""Examples in docstrings are run."""

import doctest
import importlib
import pkgutil

import hashcade.neighbors
import pytest

import hashcade.baselines
import hashcade.codes
import hashcade.data
import hashcade.evaluate
import hashcade.index
import hashcade.learn
import hashcade.report
import hashcade.reproduce

MODULES = sorted(
    m.name
    for package in (
        hashcade.baselines,
        hashcade.codes,
        hashcade.data,
        hashcade.evaluate,
        hashcade.index,
        hashcade.learn,
        hashcade.neighbors,
        hashcade.report,
        hashcade.reproduce,
    )
    for m in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
)


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    modules = map(importlib.import_module, MODULES)
    assert sum(bool(test.examples) for m in modules for test in finder.find(m)) >= 3


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0
