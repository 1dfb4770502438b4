"""Imports point one way: a layer uses the layers before it, never the ones after it.

The imports are read from the source, not observed, so that an import inside a function or under
``TYPE_CHECKING`` counts as much as one at the top.
"""

import ast
from pathlib import Path

import pytest

import hashcade

# From the ground up. Layers in one row may use each other.
ORDER = [
    {"errors", "config"},
    {"codes"},
    {"data"},
    {"index"},
    {"learn"},
    {"baselines"},
    {"evaluate", "neighbors"},
    {"report"},
    {"reproduce"},
    {"cli", "serve", "demo", "__main__"},
]
RANK = {layer: rank for rank, layers in enumerate(ORDER) for layer in layers}
# Forbidden although the order would allow it: a layer of ours, or a package of others.
NEVER = {
    "errors": {"numpy", "numba", "torch"},
    "config": {"torch"},
    "codes": {"torch"},
    "index": {"torch"},
    "learn": {"index"},
    "baselines": {"index"},
    "evaluate": {"torch", "learn", "baselines"},  # takes whatever has the contract of a hasher
}
IMPORTING_CALLS = {"import_module", "__import__", "require_extra", "importorskip"}


def layer_of(parts):
    """Layer of the module ``hashcade.<parts>``; private modules at the top are ground."""
    return "errors" if parts[0].startswith("_") and parts[0] not in RANK else parts[0]


def imported_names(tree, package):
    """Full names of everything that a module imports; ``package`` resolves relative imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package[: len(package) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            first = node.args[0]
            if called in IMPORTING_CALLS and isinstance(first, ast.Constant):
                yield str(first.value)


def violations(root):
    """All imports under ``root`` (the package's folder) that point the wrong way."""
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts == ("__init__",):  # the front door: shows names of all layers, uses none
            continue
        here = layer_of(parts)
        where = ".".join(parts)
        if here not in RANK:
            found.append(f"{where} is in no layer")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for name in imported_names(tree, ("hashcade", *parts[:-1])):
            top, *rest = name.split(".")
            forbidden = NEVER.get(here, set())
            if top != "hashcade":
                if top in forbidden:
                    found.append(f"{where} imports {top}")
                continue
            there = layer_of(rest) if rest else "hashcade"
            if there not in RANK:  # names from the front door hide where they come from
                found.append(f"{where} imports {name} from the top of the package")
            elif RANK[there] > RANK[here] or there in forbidden:
                found.append(f"{where} imports {there}")
    return found


def test_imports_point_one_way():
    assert violations(Path(hashcade.__file__).parent) == []


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("codes/_a.py", "from hashcade.index import HashIndex", ["codes._a imports index"]),
        ("codes/_a.py", "def f():\n    import torch.nn", ["codes._a imports torch"]),
        ("index/_a.py", "from torch import nn", ["index._a imports torch"]),
        ("index/_a.py", "require_extra('torch', 'train')", ["index._a imports torch"]),
        ("index/_a.py", "import hashcade.learn._b", ["index._a imports learn"]),
        ("index/_a.py", "from ..learn import _b", ["index._a imports learn"]),
        ("index/_a.py", "from .. import learn", ["index._a imports learn"]),
        ("index/__init__.py", "from ..learn import b", ["index.__init__ imports learn"]),
        ("learn/deep/_a.py", "from ...index import b", ["learn.deep._a imports index"]),
        ("learn/_a.py", "from hashcade import index", ["learn._a imports index"]),
        ("data/_a.py", "from importlib import import_module as f", []),
        ("data/_a.py", "importlib.import_module('hashcade.cli')", ["data._a imports cli"]),
        ("_helper.py", "from hashcade.codes import x", ["_helper imports codes"]),
        (
            "learn/_a.py",
            "from hashcade import CodeShape",
            ["learn._a imports hashcade.CodeShape from the top of the package"],
        ),
        ("gadgets/_a.py", "", ["gadgets._a is in no layer"]),
        ("learn/_a.py", "import torch\nfrom hashcade.codes import CodeShape", []),
        ("index/_a.py", "from ..codes._shape import CodeShape\nfrom ._b import c", []),
        ("serve/_a.py", "from hashcade import learn, index\nfrom hashcade._extras import x", []),
        ("__init__.py", "from hashcade.serve import anything", []),
    ],
)
def test_a_violation_is_seen(tmp_path, module, source, expected):
    path = tmp_path / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    assert violations(tmp_path) == expected
