import re

import pytest

from experiments.tables import ablation_sweeps, ablation_table, nmi_table, search_table


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_ours_stands_beside_the_paper_with_mean_and_spread(make_row):
    rows = [
        make_row("metric", sparsity=0, suf=1.0, pr_1=58.0, pr_4=57.0, pr_16=51.0, suf_16=1.0),
        make_row("vq", suf=40.0, pr_1=57.0, pr_4=56.0, pr_16=55.0, suf_16=39.0),
        make_row("ours", seed=0, suf=100.0, pr_1=59.0, pr_4=58.0, pr_16=56.0, suf_16=90.0),
        make_row("ours", seed=1, suf=104.0, pr_1=61.0, pr_4=58.0, pr_16=56.0, suf_16=90.0),
    ]
    table = search_table(rows, experiment="cifar100", loss="npairs", database="test")
    lines = [cells(line) for line in table.to_markdown().splitlines()]
    assert lines[0] == ["k_s", "Method", "SUF", "Pr@1", "Pr@4", "Pr@16", "SUF at Pr@16"]
    assert lines[2][:4] == ["", "Metric", "1.00 (1.00)", "58.00 (57.05)"]
    assert lines[3][:4] == ["1", "VQ", "40.00 (34.86)", "57.00 (56.76)"]
    # Mean of two seeds, standard deviation with n - 1, the paper's result; bold: best of its block.
    assert lines[4][:4] == ["", "Ours", "**102.00** ± 2.83 (101.10)", "**60.00** ± 1.41 (58.28)"]
    assert lines[4][6] == "**90.00** ± 0.00"
    assert len(lines) == 5


def test_rows_of_other_tables_are_left_out(make_row):
    rows = [
        make_row("ours", pr_1=1.0),
        make_row("ours", pr_1=2.0, loss="triplet"),
        make_row("ours", pr_1=3.0, database="train"),
        make_row("ours", pr_1=4.0, experiment="imagenet"),
        make_row("ours", pr_1=5.0, variant="n_probe=2"),
    ]
    table = search_table(rows, experiment="cifar100", loss="npairs", database="test")
    (line,) = table.rows
    assert line.cells[1].values == (1.0,)
    assert line.cells[0].values == ()  # nothing was measured: a dash, and no invention
    assert line.cells[0].to_markdown() == "– (101.10)"


def test_methods_stand_in_the_order_of_the_paper(make_row):
    rows = [make_row(method, sparsity=k, pr_1=1.0)
            for k in (2, 1) for method in ("ours+", "ours", "flat", "th")]  # fmt: skip
    table = search_table(rows, experiment="cifar100", loss="npairs", database="test")
    assert [line.heads for line in table.rows] == [
        ("1", "Th"), ("", "Jeong & Song"), ("", "Ours"), ("", "Ours+"),
        ("2", "Th"), ("", "Jeong & Song"), ("", "Ours"), ("", "Ours+"),
    ]  # fmt: skip


def test_latex_has_a_line_per_row_and_escapes(make_row):
    rows = [make_row("flat", suf=50.0, pr_1=1.0), make_row("ours", seed=0, suf=60.0, pr_1=0.5)]
    latex = search_table(rows, experiment="cifar100", loss="npairs", database="test").to_latex()
    assert latex.count("\\begin{") == latex.count("\\end{") == 2
    assert "Jeong \\& Song & 50.00 (54.85) & \\textbf{1.00} (58.19)" in latex
    assert "\\textbf{60.00} (101.10) & 0.50 (58.28)" in latex
    columns = re.search(r"begin\{tabular\}\{(\w+)\}", latex)[1]
    for line in latex.splitlines():
        if line.endswith("\\\\"):
            assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1
    assert not re.search(r"(?<!\\)[_%#]", latex)


def test_plain_values_hold_every_seed(make_row):
    rows = [make_row("ours", seed=s, pr_1=50.0 + s) for s in (2, 0, 1)]
    table = search_table(rows, experiment="cifar100", loss="npairs", database="test")
    (row,) = table.to_plain()["rows"]
    assert row["Method"] == "Ours"
    assert row["Pr@1"] == {
        "values": [50.0, 51.0, 52.0],
        "mean": 51.0,
        "spread": 1.0,
        "paper": 58.28,
    }


def test_nmi_beside_the_paper(make_row):
    rows = [
        make_row("lsh", nmi=40.0),
        make_row("ours", nmi=70.0),
        make_row("ours", nmi=86.0, database="train"),
        make_row("ours", nmi=99.0, sparsity=2),
    ]
    table = nmi_table(rows, experiment="cifar100", losses=["npairs"], databases=["train", "test"])
    lines = [cells(line) for line in table.to_markdown().splitlines()]
    assert lines[0] == ["Method", "npairs, train", "npairs, test"]
    assert lines[2] == ["LSH", "– (43.80)", "40.00 (37.45)"]
    assert lines[3] == ["Ours", "**86.00** (86.80)", "**70.00** (71.30)"]


@pytest.mark.parametrize("function", ["to_markdown", "to_latex", "to_plain"])
def test_an_empty_table_is_no_error(function):
    table = search_table([], experiment="cifar100", loss="npairs", database="test")
    assert getattr(table, function)()


def test_the_ablation_has_a_line_per_variant_and_a_sweep_per_setting(make_row):
    metrics = {"suf": 100.0, "pr_1": 60.0, "pr_4": 59.0, "pr_16": 58.0, "suf_16": 90.0, "nmi": 70.0}
    rows = [
        make_row("ours+", variant="joint_steps=0", **metrics),
        make_row("ours", **metrics),
        make_row("ours", variant="sibling_penalty=5.0", **metrics | {"pr_1": 62.0}),
        make_row("ours", variant="sibling_penalty=0.5", **metrics | {"pr_1": 61.0}),
        make_row("ours", variant="sibling_penalty=0.5", seed=1, **metrics | {"pr_1": 61.5}),
        make_row("ours", variant="depth=1,width=64", **metrics),
    ]
    table = ablation_table(rows)
    assert [line.heads for line in table.rows] == [
        ("Ours", "as in the tables"),
        ("Ours", "depth=1, width=64"),
        ("Ours+", "the book alone, not trained for it"),
        ("Ours", "sibling_penalty=0.5"),
        ("Ours", "sibling_penalty=5.0"),
    ]
    assert table.rows[3].cells[1].values == (61.0, 61.5)
    sweeps = ablation_sweeps(rows)
    assert list(sweeps) == ["depth", "α (siblings)"]
    assert [(p["value"], p["pr_1"]) for p in sweeps["α (siblings)"]] == [(0.5, 61.25), (5.0, 62.0)]
