"""``hashcade inspect`` and ``hashcade verify``."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from hashcade._io import read_file
from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli import warn
from hashcade.cli.inputs import load_model, load_table
from hashcade.errors import ConfigError, HashcadeError


def inspect(
    path: Annotated[Path, opt.argument("TABLE or MODEL", "What to inspect.")],
    top: Annotated[int, opt.number("Number of largest buckets to list.", min=0)] = 10,
    branches: Annotated[int, opt.number("Branches to show per node, largest first.", min=0)] = 6,
    as_json: opt.Json = False,
) -> None:
    """Describe a table or a model. Needs no torch.

    Of a table: occupancy and purity of buckets, the largest buckets, and the tree.

    \b
    Examples:
      hashcade inspect table/
      hashcade inspect table/ --top 3 --branches 20
      hashcade inspect table/ --json
      hashcade inspect model/
    """
    if out.require_kind(path) == out.TABLE:
        _inspect_table(path, top, branches, as_json)
        return
    from hashcade.learn import model_fingerprint, read_config

    config, card = read_config(path), path / "card.json"
    content = json.loads(read_file(card)) if card.is_file() else None
    resolved = config["resolved"]
    kind = "images" if len(resolved["item_shape"]) == 3 else "numbers (embeddings)"
    if resolved["features"]:
        sides = "×".join(map(str, resolved["features"]["image_size"]))
        kind = f"features by {resolved['features']['name']}, of images of {sides}"
    network = f", network {resolved['backbone']}" if resolved["backbone"] else ""
    out.report(
        as_json,
        {"kind": "model", "config": config, "card": content},
        ("model", f"{path} (fingerprint {model_fingerprint(path)[:12]})"),
        ("takes", f"{'×'.join(map(str, resolved['item_shape']))} {kind}{network}"),
        ("classes", f"{len(config['classes']):,}"),
        ("shape", out.SHAPE.format(**resolved["shape"])),
        *((name, f"{value:.1f}") for name, value in config["validation"].items()),
    )


def _inspect_table(path: Path, top: int, branches: int, as_json: bool) -> None:
    table = load_table(path, model=False)
    shape = {name: getattr(table.index.shape, name) for name in ("width", "depth", "sparsity")}
    stats, tree = table.stats(), table.with_labels(table.index.tree())
    largest = sorted(_leaves(tree), key=lambda node: (-node["n_entries"], node["path"]))[:top]
    data = str(table.catalog.data or "unknown")
    warnings = out.warn(warn.about_buckets(stats))
    n_items, megabytes = stats["n_items"], (stats["bytes_vectors"] + stats["bytes_other"]) / 1e6
    out.report(
        as_json,
        {"kind": "table", "shape": shape, "metric": table.metric, "data": data, "stats": stats,
         "largest_buckets": largest, "tree": tree, "warnings": warnings},
        ("table", f"{path}: {n_items:,} items of dimension {stats['dim']:,}"),
        ("shape", out.SHAPE.format(**shape)),
        ("buckets", out.OCCUPIED.format(**stats)),
        ("sizes", f"largest {stats['largest_bucket']:,}, mean {stats['mean_bucket']:.1f}, "
         f"Gini {stats['gini']:.2f} (0 even, 1 all in one)"),
        ("speed-up", f"{stats['expected_speedup']:.1f} expected: "
         f"{stats['expected_candidates']:.1f} of {n_items:,} items are candidates"),
        ("purity", _purity(stats) or "unknown: there are no labels"),
        ("memory", f"{megabytes:,.1f} MB in {out.pluralize(stats['n_segments'], 'segment')}"),
        ("data", data),
    )  # fmt: skip
    if as_json:
        return
    if largest:
        out.show("", "largest buckets")
        rows = [
            ["/".join(map(str, node["path"])), node["n_entries"], _purity(node), _mix(node)]
            for node in largest
        ]
        out.print_table(["path", "items", "purity", "classes"], rows)
    if branches:
        out.show("", "tree", *(f"  {line}" for line in tree_lines(tree, branches)))


def _purity(node: dict[str, Any]) -> str | None:
    return None if node.get("purity") is None else f"{100 * node['purity']:.1f} %"


def tree_lines(node: dict[str, Any], branches: int, indent: str = "") -> list[str]:
    """The tree as lines of text, the largest branches first, the others only pluralize."""
    size = f"{node['n_entries']:,} items in {out.pluralize(node['n_buckets'], 'bucket')}"
    lines = [] if node["path"] else [f"all: {size}"]
    children = node.get("children", ())
    by_size = sorted(children, key=lambda child: (-child["n_entries"], child["path"]))
    visible, hidden = by_size[:branches], by_size[branches:]
    for number, child in enumerate(visible):
        last = number == len(visible) - 1 and not hidden
        buckets = (
            f" in {out.pluralize(child['n_buckets'], 'bucket')}" if "children" in child else ""
        )
        start = f"{indent}{'└─' if last else '├─'} {child['path'][-1]}"
        lines.append(f"{start}: {child['n_entries']:,}{buckets}  {_mix(child)}".rstrip())
        lines += tree_lines(child, branches, indent + ("   " if last else "│  "))
    if hidden:
        items = sum(child["n_entries"] for child in hidden)
        lines.append(f"{indent}└─ … {len(hidden):,} more with {items:,}")
    return lines


def _mix(node: dict[str, Any]) -> str:
    """The most frequent classes of a node."""
    classes, limit = node["classes"] or {}, 3
    parts = [f"{label} ({count:,})" for label, count in list(classes.items())[:limit]]
    return ", ".join(parts) + (f", {len(classes) - limit:,} more" if len(classes) > limit else "")


def _leaves(node: dict[str, Any]) -> list[dict[str, Any]]:
    if "children" not in node:
        return [node]
    return [leaf for child in node["children"] for leaf in _leaves(child)]


def verify(
    paths: Annotated[list[Path], opt.argument("TABLE or MODEL ...", "What to check.")],
    as_json: opt.Json = False,
) -> None:
    """Read a table or a model completely, and verify all checksums. Needs no torch.

    Of a table: its model, index, labels and names, and the change log of a service. The exit code
    is 2 if anything is damaged.

    \b
    Examples:
      hashcade verify table/
      hashcade verify table/ model/ --json
    """
    from hashcade.store import foreign_files

    problems = {str(path): _problems(path) for path in paths}
    tables = [path for path in paths if out.kind_of(path) == out.TABLE]
    foreign = [file for path in tables for file in foreign_files(path)]
    messages = [f"{file} is not a part of the table; it is left alone" for file in foreign]
    warnings = out.warn(messages)
    n_damaged = sum(map(bool, problems.values()))
    out.report(as_json, {"ok": not n_damaged, "problems": problems, "warnings": warnings})
    for path, lines in problems.items() if not as_json else ():
        for line in lines or ["ok"]:
            out.show(line if line.startswith(path) else f"{path}: {line}")
    if n_damaged:
        count = f"{n_damaged} of {len(problems)}"
        out.say(f"hashcade: {count} damaged; restore a copy, or make it again")
        raise typer.Exit(out.ERROR)


def _problems(path: Path) -> list[str]:
    """All problems of a table or a model."""
    problems: list[str] = []
    table = out.require_kind(path) == out.TABLE
    for check in (_check_index, _check_model) if table else (_check_model,):
        try:
            check(path)
        except HashcadeError as error:
            problems += str(error).splitlines()  # one line per problem
    return problems


def _check_index(path: Path) -> None:
    table = load_table(path, model=False)
    table.index.verify()
    table.catalog.verify(table.index)


def _check_model(path: Path) -> None:
    """Load a model, which verifies it completely; a table may have none.

    If it cannot be loaded, without torch or a custom network, its checksums were still verified.
    """
    from hashcade.store import model_path

    if not model_path(path).is_dir():
        return
    with suppress(ImportError, ConfigError):
        features = load_model(path).image_features
        if features is not None:
            features.onnx_content()
