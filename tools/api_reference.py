"""The reference of the Python interface, made from signatures and docstrings.

``python tools/api_reference.py docs/api.md`` writes it; a test says when it is stale.
"""

import importlib
import inspect
import re
import sys
from pathlib import Path

MODULES = [
    "table", "learn", "index", "codes", "data", "evaluate", "store", "batch", "sklearn", "serve",
    "cluster",
    "errors",
]  # fmt: skip
HEAD = """# Python reference

Made from the docstrings by `make docs-api`. `from hashcade import ...` has the names that most
programs need: {top}.
"""


def reference():
    """The whole reference as Markdown, `HashTable` first."""
    top = importlib.import_module("hashcade")
    names = sorted((name for name in top.__all__ if name[0] != "_"), key=_rank)
    parts = [HEAD.format(top=", ".join(f"`{name}`" for name in names))]
    for name in MODULES:
        module = importlib.import_module(f"hashcade.{name}")
        parts.append(f"## hashcade.{name}\n\n{inspect.getdoc(module).splitlines()[0]}\n")
        parts += [entry(name, getattr(module, name)) for name in sorted(public(module), key=_rank)]
    return "\n".join(parts)


def public(module):
    """Public names of a module: those it lists, or those it defines."""
    if hasattr(module, "__all__"):
        return module.__all__
    own = vars(module).items()
    return [
        name
        for name, value in own
        if name[0] != "_" and callable(value) and value.__module__ == module.__name__
    ]


def _rank(name):
    return (name != "HashTable", name)


def entry(name, value):
    """One public name: its signature, its docstring, and for a class its methods."""
    if not callable(value):
        return f"### {name}\n\n```text\n{value!r}\n```\n"
    lines = [f"{name}{signature(value)}", "", inspect.getdoc(value) or ""]
    if inspect.isclass(value) and not issubclass(value, BaseException):
        for method_name, method in sorted(methods(value).items()):
            lines += ["", f".{method_name}{signature(method)}"]
            lines += [f"    {line}".rstrip() for line in (inspect.getdoc(method) or "").split("\n")]
    return f"### {name}\n\n```text\n" + "\n".join(lines).rstrip() + "\n```\n"


def methods(cls):
    """Public methods that are defined in this package, inherited ones included."""
    found = {}
    for name in dir(cls):
        value = inspect.getattr_static(cls, name)
        value = getattr(value, "__func__", value)
        module = getattr(value, "__module__", "") or ""
        if name[0] != "_" and inspect.isfunction(value) and module.startswith("hashcade"):
            found[name] = value
    return found


def signature(value):
    """Parameters without their types, which the docstring explains."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    shown = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    text = str(inspect.Signature([p for p in shown if p.name not in ("self", "cls")]))
    return re.sub(r" at 0x[0-9a-f]+", "", text)  # of a default that is a function


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
    print(f"written {sys.argv[1]}")
