"""``hashcade inspect``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hashcade.cli._directory import kind_of
from hashcade.cli._journal import say_what_waits
from hashcade.cli._options import Json
from hashcade.cli._output import bytes_text, counted, percent, print_fields, print_json, print_table
from hashcade.errors import StorageError

if TYPE_CHECKING:
    from hashcade.cli._buckets import Node
    from hashcade.index import HashIndex, Origin


def inspect(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="INDEX or MODEL", show_default=False, help="What is to be looked into."
        ),
    ],
    top: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many of the largest buckets.")
    ] = 10,
    branches: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="How many branches of each node of the tree, largest first."
        ),
    ] = 6,
    as_json: Json = False,
) -> None:
    """Look into an index or a model.

    Of an index: how full and how pure it is, the largest buckets, and the tree.

    \b
    Examples:
      hashcade inspect index/
      hashcade inspect index/ --top 3 --branches 20
      hashcade inspect index/ --json
      hashcade inspect model/
    """
    if not path.exists():
        raise StorageError(f"{path} does not exist; check the path")
    kind = kind_of(path)
    if kind is None:
        raise StorageError(
            f"{path} is neither a model nor an index; make them with hashcade train and "
            "hashcade build"
        )
    if kind == "model":
        _inspect_model(path, as_json)
    else:
        _inspect_index(path, top, branches, as_json)


def _inspect_model(path: Path, as_json: bool) -> None:
    import json

    config = json.loads((path / "config.json").read_bytes())
    card_path = path / "card.json"
    card = json.loads(card_path.read_bytes()) if card_path.is_file() else None
    if as_json:
        print_json({"kind": "model", "config": config, "card": card})
        return
    from hashcade.index import model_fingerprint

    plan, shape = config["plan"], config["plan"]["shape"]
    fields: list[tuple[str, object]] = [
        ("model", f"{path} (fingerprint {model_fingerprint(path)[:12]})"),
        ("takes", "×".join(map(str, plan["item_shape"])) + _takes(plan)),
        ("classes", f"{len(config['classes']):,}"),
        ("table", f"width {shape['width']}, depth {shape['depth']}, sparsity {shape['sparsity']}"),
        ("made by", f"hashcade {config['hashcade_version']}"),
    ]
    fields += [(name, f"{value:.1f}") for name, value in config["validation"].items()]
    if card is not None:
        fields += [("data", card["data"]["source"]), ("made on", card["made"])]
    print_fields(fields)


def _takes(plan: dict[str, Any]) -> str:
    network = f", network {plan['backbone']}" if plan["backbone"] else ""
    return f" {'images' if len(plan['item_shape']) == 3 else 'numbers (embeddings)'}{network}"


def _inspect_index(path: Path, top: int, branches: int, as_json: bool) -> None:
    from hashcade.cli._buckets import make_tree
    from hashcade.index import HashIndex, read_origin

    index = HashIndex.load(path)
    say_what_waits(path)
    origin = read_origin(path)
    stats = index.stats()
    tree = make_tree(index)

    def name(label: int) -> str:
        return str(origin.class_name(label) if origin else label)

    largest = sorted(_leaves(tree), key=lambda node: (-node.n_entries, node.path))[:top]
    if as_json:
        shape = index.shape
        print_json(
            {
                "kind": "index",
                "shape": {"width": shape.width, "depth": shape.depth, "sparsity": shape.sparsity},
                "model": str(origin.model) if origin else None,
                "model_fingerprint": origin.model_fingerprint if origin else None,
                "stats": stats,
                "largest_buckets": [_plain(node, name) for node in largest],
                "tree": _plain(tree, name),
            }
        )
        return
    _print_summary(path, index, origin, stats)
    if largest:
        print("\nlargest buckets")
        print_table(
            ["path", "items", "purity", "classes"],
            [
                ["/".join(map(str, node.path)), node.n_entries,
                 None if node.purity is None else percent(node.purity), _mix(node, name)]
                for node in largest
            ],
        )  # fmt: skip
    if branches:
        print("\ntree")
        for line in tree_lines(tree, name, branches):
            print(f"  {line}")


def _print_summary(
    path: Path, index: HashIndex, origin: Origin | None, stats: dict[str, Any]
) -> None:
    shape = index.shape
    fields: list[tuple[str, object]] = [
        ("index", f"{path}: {stats['n_items']:,} items of dimension {stats['dim']:,}"),
        (
            "table",
            f"width {shape.width}, depth {shape.depth}, sparsity {shape.sparsity}: "
            f"{stats['n_occupied']:,} of {stats['n_buckets']:,} buckets are occupied",
        ),
        (
            "sizes",
            f"largest {stats['largest_bucket']:,}, mean {stats['mean_bucket']:.1f}, "
            f"Gini {stats['gini']:.2f} (0 even, 1 all in one)",
        ),
        (
            "speed-up",
            f"{stats['expected_speedup']:.1f} expected: {stats['expected_candidates']:.1f} of "
            f"{stats['n_items']:,} items looked at",
        ),
    ]
    if "purity" in stats:
        fields.append(("purity", percent(stats["purity"])))
    total = stats["bytes_vectors"] + stats["bytes_other"]
    fields.append(("memory", f"{bytes_text(total)} in {counted(stats['n_segments'], 'segment')}"))
    if origin is not None and origin.model is not None:
        fields.append(("model", origin.model))
    if origin is not None and origin.data is not None:
        fields.append(("data", origin.data))
    print_fields(fields)


def tree_lines(node: Node, name: Callable[[int], str], branches: int) -> list[str]:
    """The tree as lines of text, the largest branches first and the rest as a number."""
    lines = [f"all: {node.n_entries:,} items in {counted(node.n_buckets, 'bucket')}"]
    return lines + _branch_lines(node, name, branches, "")


def _branch_lines(node: Node, name: Callable[[int], str], branches: int, indent: str) -> list[str]:
    ordered = sorted(node.children, key=lambda child: (-child.n_entries, child.path))
    shown, rest = ordered[:branches], ordered[branches:]
    lines = []
    for number, child in enumerate(shown):
        last = number == len(shown) - 1 and not rest
        many = f" in {counted(child.n_buckets, 'bucket')}" if child.children else ""
        mix = _mix(child, name)
        lines.append(
            f"{indent}{'└─' if last else '├─'} {child.path[-1]}: {child.n_entries:,}{many}"
            + (f"  {mix}" if mix else "")
        )
        lines += _branch_lines(child, name, branches, indent + ("   " if last else "│  "))
    if rest:
        items = sum(child.n_entries for child in rest)
        lines.append(f"{indent}└─ … {len(rest):,} more with {items:,}")
    return lines


def _mix(node: Node, name: Callable[[int], str], most: int = 3) -> str:
    """The largest classes of a node."""
    parts = [f"{name(label)} ({count:,})" for label, count in list(node.classes.items())[:most]]
    more = len(node.classes) - most
    return ", ".join(parts) + (f", {more:,} more" if more > 0 else "")


def _leaves(node: Node) -> Iterator[Node]:
    if not node.children and node.path:
        yield node
    for child in node.children:
        yield from _leaves(child)


def _plain(node: Node, name: Callable[[int], str]) -> dict[str, Any]:
    """A node and what is below it in plain values."""
    plain: dict[str, Any] = {
        "path": list(node.path),
        "n_entries": node.n_entries,
        "n_buckets": node.n_buckets,
        "purity": node.purity,
        "classes": {name(label): count for label, count in node.classes.items()},
    }
    if node.children:
        plain["children"] = [_plain(child, name) for child in node.children]
    return plain
