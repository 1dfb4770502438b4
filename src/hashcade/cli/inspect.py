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
    if out.known_kind(path) == out.TABLE:
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
        ("memory", f"{megabytes:,.1f} MB in {out.counted(stats['n_segments'], 'segment')}"),
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
    """The tree as lines of text, the largest branches first and the rest as a number."""
    size = f"{node['n_entries']:,} items in {out.counted(node['n_buckets'], 'bucket')}"
    lines = [] if node["path"] else [f"all: {size}"]
    children = node.get("children", ())
    ordered = sorted(children, key=lambda child: (-child["n_entries"], child["path"]))
    shown, rest = ordered[:branches], ordered[branches:]
    for number, child in enumerate(shown):
        last = number == len(shown) - 1 and not rest
        buckets = f" in {out.counted(child['n_buckets'], 'bucket')}" if "children" in child else ""
        start = f"{indent}{'└─' if last else '├─'} {child['path'][-1]}"
        lines.append(f"{start}: {child['n_entries']:,}{buckets}  {_mix(child)}".rstrip())
        lines += tree_lines(child, branches, indent + ("   " if last else "│  "))
    if rest:
        items = sum(child["n_entries"] for child in rest)
        lines.append(f"{indent}└─ … {len(rest):,} more with {items:,}")
    return lines


def _mix(node: dict[str, Any]) -> str:
    """The largest classes of a node."""
    classes, most = node["classes"] or {}, 3
    parts = [f"{label} ({count:,})" for label, count in list(classes.items())[:most]]
    return ", ".join(parts) + (f", {len(classes) - most:,} more" if len(classes) > most else "")


def _leaves(node: dict[str, Any]) -> list[dict[str, Any]]:
    if "children" not in node:
        return [node]
    return [leaf for child in node["children"] for leaf in _leaves(child)]


def verify(
    paths: Annotated[list[Path], opt.argument("TABLE or MODEL ...", "What to check.")],
    as_json: opt.Json = False,
) -> None:
    """Read all of a table or a model, and check every checksum. Needs no torch.

    Of a table: its model, its index, its labels and names, and the changes of a service that
    are not yet saved. The exit code is 2 if anything is wrong.

    \b
    Examples:
      hashcade verify table/
      hashcade verify table/ model/ --json
    """
    problems = {str(path): _problems(path) for path in paths}
    others = [other for path in paths if out.kind_of(path) == out.TABLE for other in _others(path)]
    warnings = out.warn(
        [f"{other} is not a part of the table; it is left alone" for other in others]
    )
    bad = sum(map(bool, problems.values()))
    out.report(as_json, {"ok": not bad, "problems": problems, "warnings": warnings})
    for path, lines in problems.items() if not as_json else ():
        for line in lines or ["ok"]:
            out.show(line if line.startswith(path) else f"{path}: {line}")
    if bad:
        out.say(f"hashcade: {bad} of {len(problems)} damaged; restore a copy, or make it again")
        raise typer.Exit(out.ERROR)


def _problems(path: Path) -> list[str]:
    """Everything that is wrong with a table or a model."""
    problems: list[str] = []
    table = out.known_kind(path) == out.TABLE
    for check in (_check_index, _check_model) if table else (_check_model,):
        try:
            check(path)
        except HashcadeError as error:
            problems += str(error).splitlines()  # all that is damaged
    return problems


def _others(path: Path) -> list[Path]:
    from hashcade.store import foreign_files

    return foreign_files(path)


def _check_index(path: Path) -> None:
    table = load_table(path, model=False)
    table.index.verify()
    table.catalog.verify(table.index)


def _check_model(path: Path) -> None:
    """Load a model, which checks all of it; a table may have none.

    What cannot be made here, for want of torch or of a network of the user's own, has its checksums
    compared.
    """
    from hashcade.store import model_path

    if not model_path(path).is_dir():
        return
    with suppress(ImportError, ConfigError):
        features = load_model(path).image_features
        if features is not None:
            features.onnx_content()
