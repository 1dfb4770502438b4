"""Examples in docstrings are run, and only public names of the package are used."""

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import experiments

MODULES = sorted(m.name for m in pkgutil.walk_packages(experiments.__path__, "experiments."))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def names_used(tree):
    """Full names of what is imported, and attributes that the module does not define itself."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    defined = {node.attr for node in attributes if getattr(node.value, "id", "") == "self"}
    yield from (f".{node.attr}" for node in attributes if node.attr not in defined)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("name", MODULES)
def test_only_public_names_of_the_package_are_used(name):
    path = Path(importlib.import_module(name).__file__)
    for used in names_used(ast.parse(path.read_text(encoding="utf-8"))):
        top, *rest = used.split(".")
        if top in ("hashcade", ""):
            private = [part for part in rest if part[0] == "_" and part[-2:] != "__"]
            assert not private, f"{name} uses {used}"
        if top == "hashcade":  # from the package, not from its modules
            assert len(rest) <= 2, f"{name} imports {used}"
