"""Verdicts on rows whose numbers are known."""

from experiments.verdicts import (
    against_baselines,
    against_exhaustive,
    against_paper,
    at_same_speedup,
    effect_of_remapping,
    related_siblings,
)


def test_cells_below_the_paper_are_named(make_row):
    rows = [make_row("ours", suf=101.1, pr_1=58.0, pr_4=60.0, pr_16=60.0),
            make_row("ours", sparsity=2, suf=70.0, pr_1=58.0, pr_4=57.0, pr_16=56.0)]  # fmt: skip
    (text,) = against_paper(rows, "cifar100", "ours", ["npairs", "triplet"], ["test", "train"])
    assert "in 7 of 8 cells" in text
    assert "below in: npairs k_s = 1 test Pr@1 58.00 (58.28)." in text
    assert against_paper([], "cifar100", "ours", ["npairs"], ["test"]) == []


def test_where_a_baseline_is_better_is_named(make_row):
    rows = [
        make_row("ours+", suf=100.0, pr_1=60.0, suf_1=100.0),
        make_row("ours+", variant="n_probe=2", suf=50.0, pr_1=60.5, suf_1=50.0),
        make_row("vq", suf=60.0, pr_1=61.0, suf_1=60.0),
        make_row("vq", variant="n_centroids=256", suf=160.0, pr_1=59.0, suf_1=160.0),
    ]
    *table, _, verdict = against_baselines(rows, loss="npairs", database="test")
    assert "| 97 | Pr@1 | 60.00 | 59.00 (VQ) | +1.00 |" in table
    assert "| 50 | Pr@1 | 60.50 | 61.00 (VQ) | -0.50 |" in table
    assert "| 150 | Pr@1 | – | 59.00 (VQ) | – |" in table
    assert "Pr@1 at SUF 50 (VQ, -0.50)" in verdict
    assert "Pr@1 at SUF 150 (VQ, –)" in verdict
    assert "SUF 97" not in verdict


def test_at_the_same_speedup(make_row):
    where = {"experiment": "imagenet-split", "loss": "triplet", "database": "val"}
    rows = [
        make_row("ours", suf=70.0, suf_1=70.0, pr_1=20.0, **where),
        make_row("vq-train", suf=60.0, suf_1=60.0, pr_1=25.0, **where),
        make_row("vq-train", variant="n_centroids=192", suf=80.0, suf_1=80.0, pr_1=19.0, **where),
    ]
    (line,) = at_same_speedup(
        rows, loss="triplet", database="val", method="ours", baseline="vq-train"
    )
    assert line == "- Ours k_s = 1, SUF 70.0, Pr@1: 20.00, not below VQ-train 19.00"


def test_remapping_is_compared_on_common_seeds(make_row):
    rows = [make_row("ours", suf=100.0, pr_1=60.0), make_row("ours", seed=1, suf=120.0, pr_1=70.0),
            make_row("ours-r", suf=101.0, pr_1=61.0)]  # fmt: skip
    (line,) = effect_of_remapping(rows, ["npairs", "triplet"], "test")
    assert line.startswith("- npairs, k_s = 1, test, seed 0: ")
    assert "SUF 100.0, Pr@1 60.00" in line
    assert "SUF 101.0, Pr@1 61.00" in line


def test_exhaustive_search_on_the_same_base(make_row):
    rows = [make_row("metric", sparsity=0, pr_1=60.0), make_row("ours", pr_1=59.0),
            make_row("metric", sparsity=0, pr_1=60.0, database="train"),
            make_row("ours", pr_1=60.0, database="train")]  # fmt: skip
    below, equal = against_exhaustive(rows, ["npairs", "triplet"], ["test", "train"])
    assert "test: Pr@1 59.00, **below** exhaustive search on the same base (60.00)" in below
    assert "train: Pr@1 60.00, not below" in equal


def test_siblings_are_reported_for_rows_that_have_them(make_row):
    from dataclasses import replace

    siblings = {"n_pairs": 255, "related": 37.64, "chance": 4.04, "p_value": 1e-4}
    row = replace(make_row("ours"), details={"siblings": siblings})
    (line,) = related_siblings([row, make_row("vq")])
    assert line.startswith("- Ours, npairs, seed 0: 37.6 % of 255 pairs of sibling classes share")
