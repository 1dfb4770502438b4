"""Pages of results, written from the stored rows: text, tables and plots."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hashcade.report._paper import paper_figures, paper_solver_seconds
from hashcade.report._plots import (
    plot_ablation,
    plot_occupancy,
    plot_precision_speedup,
    plot_solver_seconds,
)
from hashcade.report._row import ResultRow
from hashcade.report._table import METHODS, Table, nmi_table, search_table
from hashcade.reproduce._jobs import SEARCHED
from hashcade.reproduce._progress import duration
from hashcade.reproduce._standing import (
    against_paper,
    against_rivals,
    at_own_speedup,
    lines_reached,
    mean_figure,
    remapping,
)
from hashcade.reproduce._store import write_whole
from hashcade.reproduce._versions import machine

HONEST = (
    "Checkpoints were chosen on a tenth of the training set, set aside for that, and so were the "
    "settings of the preset where there were trials. Labels of the test set serve to count what "
    "was found, and nothing else."
)
LOOKED = (
    "Tables with other settings of Ours+ were made and looked at before this one (NMI on test was "
    "70.2, then 71.1 and 71.2, and with triplet flat was above it), and the trials on the items "
    "set aside went on after that; each choice was made by those items alone."
)
TRANSFER = (
    "Features are those of EfficientNet-Lite0, trained on ImageNet at its own resolution, averaged "
    "over an image and its mirror image; the network itself is not trained here. A base network "
    "with one hidden layer gives the vectors. Tables that are learned with it (flat, Ours-r, Ours, "
    "Ours+) fine-tune a copy of that hidden layer, as the paper's do; LSH, DCH, Th and VQ get the "
    "vectors, and DCH a hidden layer of its own on them. The paper's figures, in brackets, are of "
    "a network that was trained from scratch on the small images alone: they show where the bar "
    "was, not that the method has become better by the difference. For that, compare rows of the "
    "same table."
)
SCRATCH = (
    "A small network was trained from scratch for each loss, on the small images alone and in less "
    "than half an hour on two cores; the paper's was trained for 70,000 steps on a GPU. Tables "
    "that are learned (flat, Ours-r, Ours, Ours+) are a network with one hidden layer on its "
    "features, which stay as they are; LSH, DCH, Th and VQ get its vectors. The settings were "
    "chosen by hand, before any of these figures was known, but for the steps of the tables with "
    "npairs: after a first table, where Ours was 0.2 under exhaustive search on train, they were "
    "chosen on the items set aside."
)
SEEN = (
    "EfficientNet-Lite0 has seen the classes of ImageNet, with labels, in images of other sizes. "
    "So no class is new to the features; what is new to the tables is which of them to tell apart."
)
TRIED = (
    "A table with triplets was made and looked at before this one, in which Ours was 0.4 under "
    "exhaustive search. After that dropout for the learned tables with triplets was chosen, on the "
    "items set aside."
)
ADAPTED = (
    "Adapting makes clusters of what the hash network gets and has, the features among it; VQ-test "
    "makes them of the vectors for re-ranking, as the paper's does. The two do not see the same, "
    "and part of what lies between them is that."
)
READING = (
    "In brackets stands the paper's figure. `±` is the standard deviation over seeds; bold is the "
    "best of a block. SUF is that of one neighbour; a query that finds fewer than 16 goes on to "
    "further buckets, which SUF at Pr@16 counts."
)


def write_page(
    out: Path, name: str, rows: Sequence[ResultRow], *, title: str, note: str, command: str
) -> Path:
    """Write ``name.md`` with its plots, and the tables as ``name.tex`` and ``name.json``.

    Parameters
    ----------
    rows
        All stored rows of one experiment and preset, at least one.
    note
        What a reader must know about the data.
    command
        What made it.
    """
    experiment = rows[0].key.experiment
    parts = [f"# {title}\n"]
    if note:
        parts.append(f"**{note}**\n")
    parts.append(f"Made by `{command}`. {_circumstances(rows)}\n")
    tables: list[Table] = []
    if experiment == "solver-time":
        parts += _solver_part(out, name, rows)
    elif experiment == "ablation":
        parts += _ablation_part(out, name, rows, tables)
    else:
        parts += _search_part(out, name, rows, tables, is_comparable=not note)
    parts += _time_part(rows)
    page = out / f"{name}.md"
    write_whole(page, "\n".join(parts))
    if tables:
        write_whole(out / f"{name}.tex", "\n".join(table.to_latex() for table in tables))
        plain = [table.to_plain() for table in tables]
        write_whole(out / f"{name}.json", json.dumps(plain, indent=1, ensure_ascii=False) + "\n")
    return page


# -- parts -------------------------------------------------------------------------------------


def _search_part(
    out: Path, name: str, rows: Sequence[ResultRow], tables: list[Table], *, is_comparable: bool
) -> list[str]:
    experiment, preset = rows[0].key.experiment, rows[0].key.preset
    _, _, databases, losses = SEARCHED[experiment]
    losses = tuple(loss for loss in losses if any(r.key.loss == loss for r in rows))
    parts = [f"{text}\n" for text in (HONEST, *_about(experiment, preset))]
    parts.append("## Where we stand\n")
    parts += [line + "\n" for line in _bullets(lines_reached(rows, experiment, preset))]
    for method in ("ours", "ours+") if is_comparable else ():
        text = against_paper(rows, experiment, method, losses, databases)
        parts += [f"{text}\n"] if text else []
    parts += _below_metric(rows, losses, databases)
    if experiment == "imagenet-split":
        pairs = (("ours", "vq-train"), ("ours+", "vq-train"), ("ours+adapt", "vq-test"))
        for method, rival in pairs:
            lines = at_own_speedup(rows, loss="triplet", database="val", method=method, rival=rival)
            parts += [line + "\n" for line in _bullets(lines)]
    parts += [line + "\n" for line in _bullets(remapping(rows, losses, databases[0]))]
    parts += ["## Tables\n", f"{READING}\n"]
    for loss in losses:
        for database in databases:
            table = search_table(rows, experiment=experiment, loss=loss, database=database)
            tables.append(table)
            queries = "val" if databases == ("val",) else "test"
            parts += [f"### {loss}: {queries} against {database}\n", table.to_markdown()]
    nmi = nmi_table(rows, experiment=experiment, losses=losses, databases=databases)
    if nmi.rows:
        tables.append(nmi)
        parts += ["### NMI of the buckets, k_s = 1\n", nmi.to_markdown()]
    parts.append("## Precision against SUF\n")
    parts.append(
        "Every point is a table that was made; lines join those that no other of the method beats. "
        "Empty marks are the paper's. The comparison takes the best point of each method with at "
        "least the SUF.\n"
    )
    for loss in losses:
        for database in databases:
            parts += _curve(out, name, rows, experiment, loss, database)
    parts += _occupancy(out, name, rows, losses[:1], databases[0])
    parts += _tree(out, name, rows)
    parts += _settings_part(rows)
    return parts


def _about(experiment: str, preset: str) -> list[str]:
    """What a reader must know about a preset."""
    if preset == "cpu":
        return [SCRATCH]
    if preset != "transfer":
        return []
    if experiment == "cifar100":
        return [TRANSFER, LOOKED]
    if experiment == "imagenet-split":
        return [TRANSFER, SEEN, ADAPTED]
    return [TRANSFER, SEEN, TRIED] if experiment == "imagenet" else [TRANSFER]


def _below_metric(
    rows: Sequence[ResultRow], losses: Sequence[str], databases: Sequence[str]
) -> list[str]:
    lines = []
    for loss in losses:
        for database in databases:
            exact = mean_figure(rows, "metric", loss, 0, database, "pr_1")
            ours = mean_figure(rows, "ours", loss, 1, database, "pr_1")
            if exact is not None and ours is not None:
                verdict = "not under" if ours >= exact else "**under**"
                lines.append(
                    f"- Ours, {loss}, k_s = 1, {database}: Pr@1 {ours:.2f}, {verdict} exhaustive "
                    f"search on the same base ({exact:.2f})"
                )
    return [line + "\n" for line in _bullets(lines)]


def _curve(
    out: Path, name: str, rows: Sequence[ResultRow], experiment: str, loss: str, database: str
) -> list[str]:
    here = [r for r in rows if (r.key.loss, r.key.database) == (loss, database)]
    if not here:
        return []
    picture = f"{name}-{loss}-{database}.png"
    paper = {
        method: dict(figures)
        for method in METHODS
        if (
            figures := paper_figures(
                experiment, loss=loss, method=method, sparsity=1, database=database
            )
        )
    }
    title = f"{loss}, searched in {database}"
    plot_precision_speedup(
        out / picture, here, loss=loss, database=database, title=title, paper=paper
    )
    table, lost = against_rivals(rows, loss=loss, database=database)
    verdict = (
        f"Ours+ is not above all others in: {'; '.join(lost)}."
        if lost
        else "Ours+ is at or above every other at each of these."
    )
    return [f"### {title}\n", f"![{title}]({picture})\n", table, f"{verdict}\n"]


def _occupancy(
    out: Path, name: str, rows: Sequence[ResultRow], losses: Iterable[str], database: str
) -> list[str]:
    parts = []
    for loss in losses:
        histograms = {
            row.key.method: row.details["occupancy"]
            for row in rows
            if (row.key.loss, row.key.database, row.key.variant) == (loss, database, "")
            and row.key.sparsity == 1
            and "occupancy" in row.details
        }
        if histograms:
            picture = f"{name}-occupancy.png"
            title = f"Occupancy: {loss}, buckets of {database}, k_s = 1"
            plot_occupancy(out / picture, histograms, title=title)
            parts += ["## How full buckets are\n", f"![{title}]({picture})\n"]
    return parts


def _tree(out: Path, name: str, rows: Sequence[ResultRow]) -> list[str]:
    parts = []
    if (out / f"{name}-tree.png").is_file():
        parts += ["## The tree\n", f"![The tree with images]({name}-tree.png)\n"]
    lines = []
    for row in rows:
        siblings = row.details.get("siblings")
        if not row.key.variant and row.key.sparsity == 1 and siblings and siblings["n_pairs"]:
            lines.append(
                f"- {METHODS[row.key.method]}, {row.key.loss}, seed {row.key.seed}: "
                f"{siblings['related']:.1f} % of {siblings['n_pairs']} pairs of sibling classes "
                f"share a coarse class, {siblings['chance']:.1f} % of all pairs do "
                f"(p = {siblings['p_value']:.2g} over random rearrangements)"
            )
    if lines:
        parts += [
            "### Are siblings related?\n",
            "A class stands where most of its items are; siblings have the same parent.\n",
            *[line + "\n" for line in _bullets(lines)],
        ]
    return parts


def _ablation_part(
    out: Path, name: str, rows: Sequence[ResultRow], tables: list[Table]
) -> list[str]:
    from hashcade.reproduce._ablation import ablation_sweeps, ablation_table

    table = ablation_table(rows)
    tables.append(table)
    texts = (HONEST, *_about(rows[0].key.experiment, rows[0].key.preset))
    parts = [*(f"{text}\n" for text in texts), table.to_markdown()]
    sweeps = ablation_sweeps(rows)
    if sweeps:
        plot_ablation(out / f"{name}.png", sweeps)
        parts.append(f"![What changing one setting does]({name}.png)\n")
    return [*parts, *_settings_part(rows)]


def _solver_part(out: Path, name: str, rows: Sequence[ResultRow]) -> list[str]:
    grids: dict[str, dict[tuple[int, int], float]] = {}
    for row in rows:
        n_classes, width = (int(part) for part in row.key.variant.split("x"))
        grids.setdefault(row.key.method, {})[n_classes, width] = row.figures["seconds"]
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
    drawn = {titles[solver]: grid for solver, grid in sorted(grids.items())}
    plot_solver_seconds(out / f"{name}.png", {**drawn, "OR-tools, paper's machine": paper})
    return [
        "Median time of one level with siblings, one thread; OR-tools' solve call alone, without "
        "the time to build its network. The thorough comparison is in [solver.md](solver.md).\n",
        "\n".join(lines) + "\n",
        f"![Milliseconds by classes and width]({name}.png)\n",
    ]


def _settings_part(rows: Sequence[ResultRow]) -> list[str]:
    """Settings of the main methods, as they were."""
    shown: dict[str, Any] = {}
    for row in rows:
        key = row.key
        if key.variant or key.sparsity > 1 or key.seed != min(r.key.seed for r in rows):
            continue
        shown.setdefault(f"base, {key.loss}", row.settings.get("base"))
        if key.method in ("dch", "flat", "ours", "ours+"):
            shown.setdefault(f"{METHODS[key.method]}, {key.loss}", row.settings.get("method"))
    lines = [f"- {name}: `{json.dumps(value)}`" for name, value in sorted(shown.items())]
    return ["## Settings\n", *[line + "\n" for line in _bullets(lines)]] if lines else []


def _time_part(rows: Sequence[ResultRow]) -> list[str]:
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
    total = sum(tables.values())
    if total <= 1:
        return []
    if all(bases.values()):
        return [
            f"All {len(rows)} rows together took {duration(total + sum(bases.values()))} of one "
            f"core, of these {duration(sum(bases.values()))} for the base networks; on two cores "
            "it is half of that.\n"
        ]
    return [
        f"All {len(rows)} rows together took {duration(total)}; features and the training of the "
        "base networks are not counted.\n"
    ]


def _circumstances(rows: Sequence[ResultRow]) -> str:
    found: dict[str, set[str]] = {}
    for row in rows:
        for package, version in row.versions.items():
            found.setdefault(package, set()).add(version)
    packages = ", ".join(f"{name} {'/'.join(sorted(found[name]))}" for name in found)
    machines = [row.details.get("machine") or machine() for row in rows]
    where = "; ".join(sorted({f"{one['cpu']}, {one['cores']} cores" for one in machines}))
    seeds = sorted({row.key.seed for row in rows})
    names = ", ".join(map(str, seeds))
    return f"Seeds {names}. {packages}. {where}."


def _bullets(lines: Sequence[str]) -> list[str]:
    """Lines of a list as one block, or nothing."""
    return ["\n".join(lines)] if lines else []
