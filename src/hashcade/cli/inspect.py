"""``hashcade inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hashcade.cli import options as opt
from hashcade.cli.inputs import load_without_model
from hashcade.cli.outputs import (
    MODEL,
    counted,
    known_kind,
    percent,
    print_fields,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from hashcade.table import HashTable


def inspect(
    path: Annotated[Path, opt.argument("TABLE or MODEL", "What to look into.")],
    top: Annotated[int, opt.number("How many of the largest buckets.", min=0)] = 10,
    branches: Annotated[int, opt.number("Branches shown of each node, largest first.", min=0)] = 6,
    as_json: opt.Json = False,
) -> None:
    """Look into a table or a model. Needs no torch.

    Of a table: how full and how pure it is, the largest buckets, and the tree.

    \b
    Examples:
      hashcade inspect table/
      hashcade inspect table/ --top 3 --branches 20
      hashcade inspect table/ --json
      hashcade inspect model/
    """
    if known_kind(path) == MODEL:
        _inspect_model(path, as_json)
    else:
        _inspect_table(path, top, branches, as_json)


def _inspect_model(path: Path, as_json: bool) -> None:
    import json

    from hashcade.learn import model_fingerprint, read_config

    config = read_config(path)
    card_path = path / "card.json"
    card = json.loads(card_path.read_bytes()) if card_path.is_file() else None
    if as_json:
        print_json({"kind": "model", "config": config, "card": card})
        return
    resolved = config["resolved"]
    kind = "images" if len(resolved["item_shape"]) == 3 else "numbers (embeddings)"
    network = f", network {resolved['backbone']}" if resolved["backbone"] else ""
    fields: list[tuple[str, object]] = [
        ("model", f"{path} (fingerprint {model_fingerprint(path)[:12]})"),
        ("takes", f"{'×'.join(map(str, resolved['item_shape']))} {kind}{network}"),
        ("classes", f"{len(config['classes']):,}"),
        ("shape", "width {width}, depth {depth}, sparsity {sparsity}".format(**resolved["shape"])),
        ("version", f"hashcade {config['hashcade_version']}"),
    ]
    fields += [(name, f"{value:.1f}") for name, value in config["validation"].items()]
    if card is not None:
        fields += [("data", card["data"]["source"]), ("created", card["created"])]
    print_fields(*fields)


def _inspect_table(path: Path, top: int, branches: int, as_json: bool) -> None:
    table = load_without_model(path)
    stats, tree = table.stats(), table.with_labels(table.index.tree())
    largest = sorted(_leaves(tree), key=lambda node: (-node["n_entries"], node["path"]))[:top]
    if as_json:
        shape = table.index.shape
        print_json(
            {
                "kind": "table",
                "shape": {"width": shape.width, "depth": shape.depth, "sparsity": shape.sparsity},
                "metric": table.metric,
                "data": None if table.catalog.data is None else str(table.catalog.data),
                "stats": stats,
                "largest_buckets": largest,
                "tree": tree,
            }
        )
        return
    _print_summary(path, table, stats)
    if largest:
        print("\nlargest buckets")
        print_table(
            ["path", "items", "purity", "classes"],
            [
                ["/".join(map(str, node["path"])), node["n_entries"],
                 None if node["purity"] is None else percent(node["purity"]), _mix(node)]
                for node in largest
            ],
        )  # fmt: skip
    if branches:
        print("\ntree")
        for line in tree_lines(tree, branches):
            print(f"  {line}")


def _print_summary(path: Path, table: HashTable, stats: dict[str, Any]) -> None:
    shape = table.index.shape
    n_items, megabytes = stats["n_items"], (stats["bytes_vectors"] + stats["bytes_other"]) / 1e6
    optional = {"purity": percent(stats["purity"])} if "purity" in stats else {}
    if table.catalog.data is not None:
        optional["data"] = str(table.catalog.data)
    print_fields(
        ("table", f"{path}: {n_items:,} items of dimension {stats['dim']:,}"),
        ("shape", f"width {shape.width}, depth {shape.depth}, sparsity {shape.sparsity}"),
        ("buckets", f"{stats['n_occupied']:,} of {stats['n_buckets']:,} are occupied"),
        ("sizes", f"largest {stats['largest_bucket']:,}, mean {stats['mean_bucket']:.1f}, "
         f"Gini {stats['gini']:.2f} (0 even, 1 all in one)"),
        ("speed-up", f"{stats['expected_speedup']:.1f} expected: "
         f"{stats['expected_candidates']:.1f} of {n_items:,} items are candidates"),
        ("memory", f"{megabytes:,.1f} MB in {counted(stats['n_segments'], 'segment')}"),
        *optional.items(),
    )  # fmt: skip


# -- the tree --------------------------------------------------------------------------------------


def tree_lines(node: dict[str, Any], branches: int) -> list[str]:
    """The tree as lines of text, the largest branches first and the rest as a number."""
    lines = [f"all: {node['n_entries']:,} items in {counted(node['n_buckets'], 'bucket')}"]
    return lines + _branch_lines(node, branches, "")


def _branch_lines(node: dict[str, Any], branches: int, indent: str) -> list[str]:
    children = sorted(
        node.get("children", []), key=lambda child: (-child["n_entries"], child["path"])
    )
    shown, rest = children[:branches], children[branches:]
    lines = []
    for number, child in enumerate(shown):
        last = number == len(shown) - 1 and not rest
        buckets = f" in {counted(child['n_buckets'], 'bucket')}" if child.get("children") else ""
        mix = f"  {_mix(child)}" if child["classes"] else ""
        start = f"{indent}{'└─' if last else '├─'} {child['path'][-1]}"
        lines.append(f"{start}: {child['n_entries']:,}{buckets}{mix}")
        lines += _branch_lines(child, branches, indent + ("   " if last else "│  "))
    if rest:
        items = sum(child["n_entries"] for child in rest)
        lines.append(f"{indent}└─ … {len(rest):,} more with {items:,}")
    return lines


def _mix(node: dict[str, Any], most: int = 3) -> str:
    """The largest classes of a node."""
    classes = node["classes"] or {}
    parts = [f"{label} ({count:,})" for label, count in list(classes.items())[:most]]
    more = len(classes) - most
    return ", ".join(parts) + (f", {more:,} more" if more > 0 else "")


def _leaves(node: dict[str, Any]) -> list[dict[str, Any]]:
    if "children" not in node:
        return [node]
    return [leaf for child in node["children"] for leaf in _leaves(child)]
