"""Pages of results, written from the stored rows: tables, plots and computed verdicts.

A page in ``docs/results`` has a generated part between two markers. The text around it is written
by hand, and rendering leaves it as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.figures import (
    plot_ablation,
    plot_occupancy,
    plot_precision_speedup,
    plot_solver_seconds,
)
from experiments.jobs import SEARCHED
from experiments.paper import paper_metrics, paper_solver_seconds
from experiments.progress import duration
from experiments.rows import ResultRow, write_whole
from experiments.tables import (
    METHODS,
    Table,
    ablation_sweeps,
    ablation_table,
    nmi_table,
    search_table,
)
from experiments.verdicts import (
    against_baselines,
    against_classifier,
    against_exhaustive,
    against_paper,
    at_same_speedup,
    effect_of_remapping,
    related_siblings,
)
from hashcade.errors import DataError

BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
_READING = (
    "The paper's result is in brackets. `±` is the standard deviation over seeds; bold is the best "
    "of a block. SUF is for one neighbour; a query with fewer than 16 candidates continues in "
    "further buckets, which SUF at Pr@16 counts."
)
_CURVES = (
    "Every point is a measured table; lines join those that no other of the method beats in both. "
    "Empty marks are the paper's. The comparison takes the best point of each method with at least "
    "the SUF."
)


def write_page(out: Path, name: str, rows: Sequence[ResultRow], *, title: str) -> Path:
    """Write ``name.md`` with its plots, and the tables as ``name.tex`` and ``name.json``.

    ``rows`` are all stored rows of one experiment and preset; ``title`` is the heading of a page
    that does not exist yet.
    """
    page = out / f"{name}.md"
    before, after = _surrounding_text(page, title)
    experiment, preset = rows[0].key.experiment, rows[0].key.preset
    notes = {row.details.get("data", {}).get("note", "") for row in rows} - {""}
    seeds = sorted({row.key.seed for row in rows})
    command = f"python -m experiments {experiment} --preset {preset}"
    command += "".join(f" --seed {seed}" for seed in seeds)
    blocks = [f"**{' '.join(sorted(notes))}**"] if notes else []
    blocks.append(f"Made by `{command}`. {_circumstances(rows, seeds)}")
    tables: list[Table] = []
    if experiment == "solver-time":
        blocks += _solver_blocks(out, name, rows)
    elif experiment == "ablation":
        blocks += _ablation_blocks(out, name, rows, tables)
    else:
        blocks += _search_blocks(out, name, rows, tables, is_comparable=not notes)
    blocks += _time_blocks(rows)
    write_whole(page, _between(before, blocks, after))
    if tables:
        write_whole(out / f"{name}.tex", "\n".join(table.to_latex() for table in tables))
        plain = [table.to_plain() for table in tables]
        write_whole(out / f"{name}.json", json.dumps(plain, indent=1, ensure_ascii=False) + "\n")
    return page


def write_embeddings_page(
    out: Path, name: str, title: str, reading: str, rows: Sequence[ResultRow],
    blocks_of: Callable[[Sequence[ResultRow]], list[str]],
) -> Path:  # fmt: skip
    """Write ``name.md``; ``blocks_of`` makes the part of a data set of embeddings."""
    page = out / f"{name}.md"
    before, after = _surrounding_text(page, title)
    seeds = sorted({row.key.seed for row in rows})
    command = f"python -m experiments.{name} --seed {' '.join(map(str, seeds))}"
    blocks = [f"Made by `{command}`. {_circumstances(rows, seeds)}", reading]
    for data_set in sorted({row.key.preset for row in rows}, key=_natural):
        part = [row for row in rows if row.key.preset == data_set]
        blocks += [f"## {part[0].details['title']}", *blocks_of(part)]
    write_whole(page, _between(before, blocks, after))
    return page


def _surrounding_text(page: Path, title: str) -> tuple[str, str]:
    """The text before and after the generated part of a page.

    A page without the two markers is an error: hand-written text is never overwritten.
    """
    if not page.is_file():
        return f"# {title}\n\n", "\n"
    content = page.read_text("utf-8")
    start, end = content.find(BEGIN), content.find(END)
    if not 0 <= start < end or content.count(BEGIN) != 1 or content.count(END) != 1:
        raise DataError(
            f"{page} has no generated part to replace",
            hint=f"put the lines {BEGIN} and {END} where it belongs, or remove the page",
        )
    return content[:start], content[end + len(END) :]


def _between(before: str, blocks: Sequence[str], after: str) -> str:
    text = "\n\n".join(blocks)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def _natural(name: str) -> tuple[str, int]:
    head, _, number = name.partition("-")
    return head, int(number or 0)


# -- parts of pages ----------------------------------------------------------------------------


def _search_blocks(
    out: Path, name: str, rows: Sequence[ResultRow], tables: list[Table], *, is_comparable: bool
) -> list[str]:
    experiment = rows[0].key.experiment
    _, _, databases, losses = SEARCHED[experiment]
    losses = tuple(loss for loss in losses if any(r.key.loss == loss for r in rows))

    # ---- verdicts
    verdicts = [
        against_paper(rows, experiment, method, losses, databases)
        for method in (("ours", "ours+") if is_comparable else ())
    ]
    verdicts.append(against_exhaustive(rows, losses, databases))
    verdicts.append(against_classifier(rows, losses, databases))
    if experiment == "imagenet-split":
        pairs = (("ours", "vq-train"), ("ours+", "vq-train"), ("ours+adapt", "vq-test"))
        verdicts += [
            at_same_speedup(rows, loss="triplet", database="val", method=method, baseline=other)
            for method, other in pairs
        ]
    verdicts.append(effect_of_remapping(rows, losses, databases[0]))
    blocks = ["## Verdicts", *("\n".join(lines) for lines in verdicts if lines)]

    # ---- tables
    blocks += ["## Tables", _READING]
    queries = "val" if databases == ("val",) else "test"
    for loss in losses:
        for database in databases:
            table = search_table(rows, experiment=experiment, loss=loss, database=database)
            tables.append(table)
            blocks += [f"### {loss}: {queries} against {database}", table.to_markdown().rstrip()]
    nmi = nmi_table(rows, experiment=experiment, losses=losses, databases=databases)
    if nmi.rows:
        tables.append(nmi)
        blocks += ["### NMI of the buckets, k_s = 1", nmi.to_markdown().rstrip()]

    # ---- plots
    blocks += ["## Precision against SUF", _CURVES]
    for loss in losses:
        for database in databases:
            blocks += _curve_blocks(out, name, rows, loss, database)
    blocks += _occupancy_blocks(out, name, rows, losses[0], databases[0])
    if (out / f"{name}-tree.png").is_file():
        blocks += ["## The tree", f"![The tree with images]({name}-tree.png)"]
    lines = related_siblings(rows)
    if lines:
        blocks += [
            "### Are siblings related?",
            "The bucket of a class is the one with most of its items; siblings have one parent.",
            "\n".join(lines),
        ]
    return [*blocks, *_settings_blocks(rows)]


def _curve_blocks(
    out: Path, name: str, rows: Sequence[ResultRow], loss: str, database: str
) -> list[str]:
    selected = [r for r in rows if (r.key.loss, r.key.database) == (loss, database)]
    if not selected:
        return []
    experiment = rows[0].key.experiment
    paper = {
        method: paper_metrics(experiment, loss=loss, method=method, sparsity=1, database=database)
        for method in METHODS
    }
    picture, title = f"{name}-{loss}-{database}.png", f"{loss}, searched in {database}"
    plot_precision_speedup(
        out / picture, selected, loss=loss, database=database, title=title, paper=paper
    )
    comparison = "\n".join(against_baselines(rows, loss=loss, database=database))
    return [f"### {title}", f"![{title}]({picture})", comparison]


def _occupancy_blocks(
    out: Path, name: str, rows: Sequence[ResultRow], loss: str, database: str
) -> list[str]:
    histograms = {
        row.key.method: row.details["occupancy"]
        for row in rows
        if (row.key.loss, row.key.database, row.key.variant) == (loss, database, "")
        and row.key.sparsity == 1
        and "occupancy" in row.details
    }
    if not histograms:
        return []
    picture = f"{name}-occupancy.png"
    title = f"Occupancy: {loss}, buckets of {database}, k_s = 1"
    plot_occupancy(out / picture, histograms, title=title)
    return ["## Occupancy of the buckets", f"![{title}]({picture})"]


def _ablation_blocks(
    out: Path, name: str, rows: Sequence[ResultRow], tables: list[Table]
) -> list[str]:
    table = ablation_table(rows)
    tables.append(table)
    blocks = [table.to_markdown().rstrip()]
    sweeps = ablation_sweeps(rows)
    if sweeps:
        plot_ablation(out / f"{name}.png", sweeps)
        blocks.append(f"![Effect of changing one setting]({name}.png)")
    return [*blocks, *_settings_blocks(rows)]


def _solver_blocks(out: Path, name: str, rows: Sequence[ResultRow]) -> list[str]:
    grids: dict[str, dict[tuple[int, int], float]] = {}
    for row in rows:
        n_classes, width = (int(part) for part in row.key.variant.split("x"))
        grids.setdefault(row.key.method, {})[n_classes, width] = row.metrics["seconds"]
    paper = paper_solver_seconds()
    ours, peer = grids.get("hashcade", {}), grids.get("ortools", {})
    lines = ["| n_c | d | hashcade, ms | OR-tools here, ms | times | OR-tools in the paper, ms |",
             "|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for n_classes, width in sorted(ours.keys() | peer.keys()):
        place = (n_classes, width)
        times = f"{peer[place] / ours[place]:.1f}" if place in ours and place in peer else "–"
        cells = [f"{1e3 * g[place]:.3f}" if place in g else "–" for g in (ours, peer, paper)]
        lines.append(f"| {n_classes} | {width} | {cells[0]} | {cells[1]} | {times} | {cells[2]} |")
    titles = {"hashcade": "hashcade", "ortools": "OR-tools, same machine"}
    curves = {titles[solver]: grid for solver, grid in sorted(grids.items())}
    plot_solver_seconds(out / f"{name}.png", {**curves, "OR-tools, paper's machine": paper})
    return ["\n".join(lines), f"![Milliseconds by classes and width]({name}.png)"]


def _settings_blocks(rows: Sequence[ResultRow]) -> list[str]:
    """Settings of the main methods."""
    settings: dict[str, Any] = {}
    first_seed = min(row.key.seed for row in rows)
    for row in rows:
        key = row.key
        if key.variant or key.sparsity > 1 or key.seed != first_seed:
            continue
        settings.setdefault(f"base, {key.loss}", row.settings.get("base"))
        if key.method in ("dch", "flat", "ours", "ours+", "softmax", "prototype"):
            settings.setdefault(f"{METHODS[key.method]}, {key.loss}", row.settings.get("method"))
    lines = [f"- {name}: `{json.dumps(value)}`" for name, value in sorted(settings.items())]
    return ["## Settings", "\n".join(lines)] if lines else []


def _time_blocks(rows: Sequence[ResultRow]) -> list[str]:
    tables: dict[tuple[str, str, int, int, str], float] = {}
    bases: dict[tuple[str, int], float] = {}
    for row in rows:
        key = row.key
        if "n_probe" in key.variant:  # the same table, searched in another way
            continue
        processor = row.details.get("processor_seconds")
        spent = processor["table"] if processor else sum(row.seconds.values())
        table = (key.method, key.loss, key.sparsity, key.seed, key.variant)
        tables[table] = max(spent, tables.get(table, 0.0))
        bases[key.loss, key.seed] = processor["base"] if processor else 0.0
    total, base_total = sum(tables.values()), sum(bases.values())
    if total <= 1:
        return []
    if all(bases.values()):
        return [
            f"All {len(rows)} rows together took {duration(total + base_total)} of one core, of "
            f"these {duration(base_total)} for the base networks; on two cores it is half of that."
        ]
    return [
        f"All {len(rows)} rows together took {duration(total)}; features and the training of the "
        "base networks are not counted."
    ]


def _circumstances(rows: Sequence[ResultRow], seeds: Sequence[int]) -> str:
    """Seeds, versions and machines of rows."""
    packages: dict[str, set[str]] = {}
    for row in rows:
        for package, version in row.versions.items():
            packages.setdefault(package, set()).add(version)
    names = ", ".join(f"{name} {'/'.join(sorted(packages[name]))}" for name in packages)
    machines = [row.details["machine"] for row in rows if "machine" in row.details]
    computers = "; ".join(sorted({f"{one['cpu']}, {one['cores']} cores" for one in machines}))
    return " ".join(
        f"{part}." for part in (f"Seeds {', '.join(map(str, seeds))}", names, computers) if part
    )
