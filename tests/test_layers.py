"""The architecture as a test: imports point one way, and nobody reaches into another package.

Source is read, not run, so that an import inside a function or under ``TYPE_CHECKING`` counts as
much as one at the top.
"""

import ast
from pathlib import Path

import pytest

import hashcade

# From the ground up. Layers in one row may use each other.
ORDER = [
    {"errors", "_version", "_lazy", "_extras", "_compiler"},
    {"_io", "_validate", "_progress", "_kernels"},
    {"codes"},
    {"index"},
    {"evaluate"},
    {"data"},
    {"learn"},
    {"store"},
    {"warmup"},
    {"results"},
    {"table"},
    {"batch"},
    {"sklearn"},
    {"cluster"},
    {"serve"},
    {"demo"},
    {"cli"},
    {"__main__"},
]
RANK = {layer: rank for rank, layers in enumerate(ORDER) for layer in layers}
GROUND = ORDER[0] | ORDER[1]
# Packages of others that a layer must not import, not even inside a function.
NEVER = {
    "errors": {"numpy", "numba", "torch"},
    "_io": {"numpy", "numba", "torch"},
    "codes": {"torch"},
    "index": {"torch"},
    "evaluate": {"torch"},
    "store": {"torch"},
    "batch": {"torch"},
    "cluster": {"torch"},
}
IMPORTING_CALLS = {"import_module", "__import__", "require_extra", "importorskip"}
# Conventions of Python and scikit-learn, not private parts of ours.
PUBLIC_UNDERSCORES = {"_asdict", "_replace", "_fields", "_make", "_version"}


SHAPE = "imports the module codes.shape"


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


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC_UNDERSCORES


def names_defined(trees):
    """Attributes of ``self``, functions, classes and variables that some modules define."""
    names = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                names.add(node.attr)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
    return names


def private_attributes(trees):
    """Accesses to ``thing._name`` in a package that does not define ``_name`` itself.

    The modules of a package may know each other's private parts; what none of them defines
    belongs to somebody else.
    """
    own = names_defined(trees.values())
    for where, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
                yield f"{where}:{node.lineno} uses the private attribute {node.attr}"


def public_names(package):
    """The names in ``__all__`` of a package, each as a list of one."""
    source = package / "__init__.py"
    tree = ast.parse(source.read_text(encoding="utf-8") if source.exists() else "")
    lists = [node.value for node in tree.body if isinstance(node, ast.Assign)
             and getattr(node.targets[0], "id", "") == "__all__"]  # fmt: skip
    return [[element.value] for elements in lists for element in elements.elts]


def violations(root):
    """Everything under ``root`` (the package's folder) that breaks the rules."""
    problems, layers = [], {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts == ("__init__",):  # the front door: shows names of all layers, uses none
            continue
        layer, where = parts[0], ".".join(parts)
        if layer not in RANK:
            problems.append(f"{where} is in no layer")
            continue
        packages = {p.name for p in root.iterdir() if p.is_dir()} | set(RANK)
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for name in imported_names(tree, ("hashcade", *parts[:-1])):
            top, *rest = name.split(".")
            if top != "hashcade":
                if top in NEVER.get(layer, set()):
                    problems.append(f"{where} imports {top}")
                continue
            if not rest or rest[0] not in packages:
                problems.append(f"{where} imports {name} from the top of the package")
                continue
            other = rest[0]
            if other not in RANK or RANK[other] > RANK[layer]:
                problems.append(f"{where} imports {other}")
            elif other != layer and (root / other).is_dir() and len(rest) > 1:
                inner = root / other / rest[1]
                is_module = inner.is_dir() or inner.with_suffix(".py").exists()
                if is_private(rest[1]) or (
                    is_module and rest[1:] not in public_names(root / other)
                ):
                    problems.append(f"{where} imports the module {'.'.join(rest[:2])}")
            elif other != layer and other not in GROUND and len(rest) > 1 and is_private(rest[1]):
                problems.append(f"{where} imports the private name {'.'.join(rest[:2])}")
        layers.setdefault(layer, {})[where] = tree
    for trees in layers.values():
        problems += private_attributes(trees)
    return problems


def test_the_rules_hold():
    assert violations(Path(hashcade.__file__).parent) == []


def test_experiments_use_public_names_alone():
    folder = Path(__file__).parent.parent / "experiments"
    problems, trees = [], {}
    for path in sorted(folder.rglob("*.py")):
        tree = trees[path.name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for name in imported_names(tree, ("experiments",)):
            top, *rest = name.split(".")
            if top == "hashcade" and any(map(is_private, rest[1:])):
                problems.append(f"{path.name} imports {name}")
    assert [*problems, *private_attributes(trees)] == []


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("codes/a.py", "from hashcade.index import HashIndex", ["codes.a imports index"]),
        ("codes/a.py", "def f():\n    import torch.nn", ["codes.a imports torch"]),
        ("index/a.py", "from torch import nn", ["index.a imports torch"]),
        ("index/a.py", "require_extra('torch', 'train')", ["index.a imports torch"]),
        ("index/a.py", "import hashcade.learn.b", ["index.a imports learn"]),
        ("index/a.py", "from ..learn import b", ["index.a imports learn"]),
        ("index/a.py", "from .. import learn", ["index.a imports learn"]),
        ("index/__init__.py", "from ..learn import b", ["index.__init__ imports learn"]),
        ("learn/deep/a.py", "from ...table import b", ["learn.deep.a imports table"]),
        ("data/a.py", "from importlib import import_module as f", []),
        ("data/a.py", "importlib.import_module('hashcade.cli')", ["data.a imports cli"]),
        ("_io.py", "from hashcade.codes import x", ["_io imports codes"]),
        (
            "learn/a.py",
            "from hashcade import CodeShape",
            ["learn.a imports hashcade.CodeShape from the top of the package"],
        ),
        ("gadgets/a.py", "", ["gadgets.a is in no layer"]),
        ("learn/a.py", "import torch\nfrom hashcade.codes import CodeShape", []),
        ("learn/a.py", "from hashcade.codes._b import c", ["learn.a imports the module codes._b"]),
        ("learn/a.py", "from hashcade.codes.shape import c", [f"learn.a {SHAPE}"]),
        ("learn/a.py", "from hashcade.codes import shape", [f"learn.a {SHAPE}"]),
        ("codes/a.py", "from hashcade.codes.shape import c", []),
        (
            "sklearn.py",
            "from hashcade.table import _x",
            ["sklearn imports the private name table._x"],
        ),
        ("table.py", "index._state", ["table:1 uses the private attribute _state"]),
        ("table.py", "index._home = 1", ["table:1 uses the private attribute _home"]),
        ("table.py", "def f(self, other):\n    self._a = other._a", []),
        ("__init__.py", "from hashcade.serve import anything", []),
    ],
)
def test_a_violation_is_seen(tmp_path, module, source, expected):
    for package in ("codes", "index", "learn", "serve"):
        (tmp_path / package).mkdir()
    (tmp_path / "codes" / "shape.py").write_text("")
    path = tmp_path / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    assert violations(tmp_path) == expected
