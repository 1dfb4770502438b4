"""The page of :mod:`experiments.classes`, written from its stored rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.render import write_embeddings_page
from experiments.rows import ResultRow
from experiments.tables import Cell, Line, Table, table_block

METHODS = {
    "exhaustive": "exhaustive",
    "means": "nearest class mean",
    "kmeans": "k-means",
    "softmax": "softmax classifier",
    "path": "hashcade, path",
    "triplet": "hashcade, path, triplet",
    "codebook": "hashcade, code book",
    "prototype": "hashcade, prototypes",
    "prototype-flat": "its prototypes, all compared",
    "prototype-hnsw": "its prototypes, HNSW",
}
RIVALS = ("means", "softmax")
_TIMED_SEEDS = (0, 1, 2)  # further ones were computed beside other programs
_COSTS = {
    "decided": "decided right, %",
    "fit": "fit, s",
    "alone_us": "hash one alone, µs",
    "batch_us": "hash one of 1,000, µs",
}
_DATABASES = {"test": "test in test, without the query itself", "train": "test in train"}
_PLACES = {"": "", "label": "label", "network": "method"}
_READING = (
    "`±` is the standard deviation over seeds, bold the best of a block. SUF is for one neighbour; "
    "a query with too few candidates continues to the classes that the method ranks next. *Given* "
    "and *learned*: candidates are ranked by the given embeddings, or by the points of the "
    "prototype model, the same ones for all methods. *Placed by label*: an item lies in the bucket "
    "of its class, *by method*: where the method puts it; queries always look where the method "
    "says. Times are of one core, from an embedding to its bucket."
)


def write_page(out: Path, rows: Sequence[ResultRow]) -> Path:
    """Write ``classes.md`` from all stored rows."""
    title = "Many classes: codes, prototypes and their rivals"
    return write_embeddings_page(out, "classes", title, _READING, rows, _data_set_blocks)


def _data_set_blocks(rows: Sequence[ResultRow]) -> list[str]:
    blocks: list[str] = []
    for database, title in _DATABASES.items():
        some = [row for row in rows if row.key.database == database]
        if some:
            blocks += [f"### {title}", search_table(some).to_markdown().rstrip()]
    blocks += verdict(rows)
    return [*blocks, "### Decisions and cost", cost_table(rows).to_markdown().rstrip()]


def search_table(rows: Sequence[ResultRow]) -> Table:
    """Methods by what places items; SUF, and precision by both kinds of vectors."""
    most = max(int(name[3:]) for name in rows[0].metrics if name.startswith("pr_"))
    columns = {"SUF": ("given", "suf")}
    for rerank in ("given", "learned"):
        for k in (1, most):
            columns[f"Pr@{k}, {rerank}"] = (rerank, f"pr_{k}")
    lines = []
    for place, title in _PLACES.items():
        block: list[Line] = []
        for method, name in METHODS.items():
            cells = [
                _cell(rows, method, metric, variant=_variant(rerank, place))
                for rerank, metric in columns.values()
            ]
            if any(cell.values for cell in cells):
                block.append(((title, name), cells))
        lines += table_block(block, mark_best=len(block) > 1)
    return Table(rows[0].key.preset, ("Placed by", "Method"), tuple(columns), tuple(lines))


def verdict(rows: Sequence[ResultRow]) -> list[str]:
    """Where prototypes are below the classifier or the class means, in means over seeds."""
    n_cells, below = 0, []
    for database, variant in sorted({(row.key.database, row.key.variant) for row in rows}):
        some = [row for row in rows if row.key.database == database]
        for metric in sorted({m for row in some for m in row.metrics if m.startswith("pr_")}):
            ours = _cell(some, "prototype", metric, variant).mean
            others = {name: _cell(some, name, metric, variant).mean for name in RIVALS}
            known = {name: value for name, value in others.items() if value is not None}
            if ours is None or not known:
                continue
            n_cells += 1
            best = max(known, key=lambda name: known[name])
            if f"{ours:.2f}" != f"{known[best]:.2f}" and ours < known[best]:
                cell = f"{database}, {variant.replace(',', ', ')}, Pr@{metric[3:]}"
                below.append(f"{cell}: {ours:.2f}, {METHODS[best]} {known[best]:.2f}")
    if n_cells == 0:
        return []
    n_right = n_cells - len(below)
    text = f"Prototypes are not below class means and classifier in {n_right} of {n_cells} cells"
    return ["\n".join([f"{text}." if not below else f"{text}; below in:\n",
                       *(f"- {line}" for line in below)])]  # fmt: skip


def cost_table(rows: Sequence[ResultRow]) -> Table:
    """Decisions, and times of the first seeds; of each seed one row has them."""
    block: list[Line] = []
    timed = [row for row in rows if row.key.seed in _TIMED_SEEDS]
    for method, name in METHODS.items():
        cells = [_cell(rows if m == "decided" else timed, method, m) for m in _COSTS]
        if method != "exhaustive" and any(cell.values for cell in cells):
            block.append(((name,), cells))
    lines = tuple(table_block(block, mark_best=False))
    return Table(rows[0].key.preset, ("Method",), tuple(_COSTS.values()), lines)


def _cell(rows: Sequence[ResultRow], method: str, metric: str, variant: str | None = None) -> Cell:
    values: dict[int, float] = {}
    for row in rows:
        if row.key.method == method and variant in (None, row.key.variant):
            numbers = {**row.metrics, "fit": row.seconds["fit"]}
            if metric in numbers:
                values.setdefault(row.key.seed, numbers[metric])
    return Cell(tuple(values[seed] for seed in sorted(values)))


def _variant(rerank: str, place: str) -> str:
    return f"rerank={rerank}" + (f",place={place}" if place else "")
