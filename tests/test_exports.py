"""Public names: they exist, they are documented, and settings are keyword-only."""

import importlib
import inspect
import sys

import pytest

import hashcade
from hashcade._lazy import lazy_names

PACKAGES = ["hashcade", *(f"hashcade.{name}" for name in (
    "batch", "codes", "data", "evaluate", "index", "learn", "serve", "sklearn", "store"
))]  # fmt: skip


def public_names():
    for package in PACKAGES:
        module = importlib.import_module(package)
        yield from ((module, name) for name in module.__all__ if not name.startswith("__"))


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_shows_the_exported_names(package):
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    assert list(module.__all__) == sorted(set(module.__all__), key=sort_key)


def sort_key(name):
    """As ruff sorts __all__: constants, classes, functions."""
    return (not name.isupper(), not name[0].isupper(), name)


@pytest.mark.parametrize(
    ("module", "name"), list(public_names()), ids=lambda value: getattr(value, "__name__", value)
)
def test_exported_names_are_documented(module, name):
    value = getattr(module, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__name__ == name
        assert inspect.getdoc(value)


def test_names_at_the_top_are_those_of_their_packages():
    from hashcade.codes import CodeShape
    from hashcade.index import HashIndex
    from hashcade.learn import Hasher
    from hashcade.table import HashTable

    assert (hashcade.CodeShape, hashcade.HashIndex) == (CodeShape, HashIndex)
    assert (hashcade.Hasher, hashcade.HashTable) == (Hasher, HashTable)


@pytest.mark.parametrize(
    ("function", "positional"),
    [
        (hashcade.code_energy, ["class_codes", "class_scores"]),
        (hashcade.solve_level, ["class_scores"]),
        (hashcade.solve_cascade, ["class_scores", "shape"]),
        (hashcade.HashTable.search, ["self", "Q", "n_neighbors"]),
        (hashcade.HashTable.fit, ["self", "X", "y"]),
        (hashcade.HashTable.add, ["self", "X"]),
        (hashcade.HashTable, []),
        (hashcade.Hasher, []),
    ],
)
def test_settings_are_keyword_only(function, positional):
    parameters = inspect.signature(function).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == positional


def test_unknown_names_are_missed_as_usual():
    with pytest.raises(AttributeError, match="module 'hashcade' has no attribute 'Nonsense'"):
        _ = hashcade.Nonsense
    assert not hasattr(hashcade.codes, "_no_such_thing")


def test_a_lazy_name_is_looked_up_once(monkeypatch):
    module = type(sys)("lazy_example")
    monkeypatch.setitem(sys.modules, "lazy_example", module)
    home = type(sys)("lazy_example.home")
    home.answer = 42
    monkeypatch.setitem(sys.modules, "lazy_example.home", home)
    module.__getattr__, _ = lazy_names("lazy_example", {"home": ["answer"]})
    assert "answer" not in vars(module)
    assert module.answer == 42
    assert vars(module)["answer"] == 42
