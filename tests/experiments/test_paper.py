"""The stored results of the paper are those of its text, where the text is at hand."""

import os
import re
from pathlib import Path

import pytest

from experiments.paper import paper_metrics, paper_solver_seconds

ROOT = Path(__file__).resolve().parents[2]
PAPER = Path(os.environ.get("HASHCADE_PAPER", ROOT.parent / "shared" / "paper" / "paper.tex"))
TRIPLET, NPAIRS = (
    [f"{loss}/{database}" for database in ("test", "train")] for loss in ("triplet", "npairs")
)
METRICS = ("suf", "pr_1", "pr_4", "pr_16")


@pytest.fixture(scope="module")
def text():
    if not PAPER.is_file():
        pytest.skip(f"no paper: {PAPER} is not there")
    return PAPER.read_text(encoding="utf-8")


def rows_of(text, label):
    """Rows (sparsity, method, numbers) of the table with this label."""
    end = text.index(f"\\label{{{label}}}")
    body = text[text.rindex("\\begin{tabular}", 0, end) : end]
    sparsity = 0
    for line in body.splitlines():
        if re.fullmatch(r"\s*\$\d\$\s*", line):
            sparsity = int(line.strip(" $"))
            continue
        line = re.sub(r"\\textbf\{([^}]*)\}", r"\1", line.partition("\\\\")[0])
        cells = [cell.strip() for cell in line.split("&")]
        names = [
            cell for cell in cells if re.fullmatch(r"[A-Z][A-Za-z-]*|\\cite\{jeong2018\}", cell)
        ]
        numbers = [float(cell) for cell in cells if re.fullmatch(r"\d+\.\d+", cell)]
        if len(names) == 1 and len(numbers) >= 4:
            method = "flat" if names[0].startswith("\\") else names[0].lower()
            yield sparsity, method, numbers


def same(experiment, loss, database, sparsity, method, numbers):
    row = paper_metrics(experiment, loss=loss, method=method, sparsity=sparsity, database=database)
    assert [row[name] for name in METRICS] == numbers, (experiment, loss, database, method)


@pytest.mark.parametrize(
    ("label", "experiment", "columns", "n_rows"),
    [
        ("tab:cifar", "cifar100", TRIPLET + NPAIRS, 19),
        ("tab:cifar_triplet", "cifar100", TRIPLET, 22),
        ("tab:cifar_npairs", "cifar100", NPAIRS, 22),
        ("tab:imagenet", "imagenet", ["triplet/val", "npairs/val"], 15),
        ("tab:imagenetsplit", "imagenet-split", ["triplet/val"], 17),
    ],
)  # fmt: skip
def test_every_row_of_the_tables(text, label, experiment, columns, n_rows):
    rows = list(rows_of(text, label))
    assert len(rows) == n_rows
    for sparsity, method, numbers in rows:
        for at, column in enumerate(columns):
            loss, database = column.split("/")
            same(experiment, loss, database, sparsity, method, numbers[4 * at : 4 * at + 4])


def test_nmi(text):
    columns = [
        (experiment, loss, database)
        for loss in ("triplet", "npairs")
        for experiment, database in (
            ("cifar100", "train"),
            ("cifar100", "test"),
            ("imagenet", "val"),
        )
    ]
    rows = list(rows_of(text, "tab:NMI"))
    assert len(rows) == 6
    for _, method, numbers in rows:
        for (experiment, loss, database), nmi in zip(columns, numbers, strict=True):
            row = paper_metrics(experiment, loss=loss, method=method, sparsity=1, database=database)
            assert row["nmi"] == nmi


def test_solver_seconds(text):
    figure = text[: text.index("\\label{fig:mcf_runtime}")].rpartition("\\begin{axis}")[2]
    lines = [
        [(int(width), float(s)) for width, s in re.findall(r"\((\d+), ([\d.]+)\)", line)]
        for line in figure.splitlines()
        if re.search(r"\(\d+, [\d.]+\)", line)
    ]
    expected = {
        (n_classes, width): seconds
        for n_classes, line in zip((64, 128, 256, 512), lines, strict=True)
        for width, seconds in line
    }
    assert paper_solver_seconds() == expected


def test_exhaustive_search_has_one_row_for_every_sparsity():
    rows = [
        paper_metrics("cifar100", loss="npairs", method="metric", sparsity=k, database="test")
        for k in (0, 1, 4)
    ]
    assert rows[0] == rows[1] == rows[2]
    assert rows[0]["pr_1"] == 57.05


@pytest.mark.parametrize("method", ["ours+", "lsh"])
def test_what_the_paper_does_not_have_is_empty(method):
    row = paper_metrics("cifar100", loss="npairs", method=method, sparsity=2, database="test")
    assert dict(row) == {}
