import numpy as np
import pytest
from PIL import Image

from experiments.figures import (
    curve_points,
    frontier,
    height_at,
    plot_ablation,
    plot_occupancy,
    plot_precision_speedup,
    plot_solver_seconds,
)
from experiments.tree import draw_tree, select_leaves
from hashcade import CodeShape


def labels_of(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def points_of(line):
    return list(zip(*(axis.tolist() for axis in map(np.asarray, line.get_data())), strict=True))


def test_points_of_a_curve_are_means_over_seeds_by_speedup(make_row):
    rows = [
        make_row("vq", variant="n_centroids=128", seed=0, suf=110.0, pr_1=60.0),
        make_row("vq", variant="n_centroids=128", seed=1, suf=112.0, pr_1=61.0),
        make_row("vq", suf=50.0, pr_1=61.5),
        make_row("vq", suf=50.0, pr_1=99.0, database="train"),
        make_row("ours", suf=98.0, pr_1=60.0, pr_16=57.0, suf_16=90.0),
    ]
    points = curve_points(rows, loss="npairs", database="test", metric="pr_1")
    assert points == {"vq": [(50.0, 61.5), (111.0, 60.5)], "ours": [(98.0, 60.0)]}
    # Candidates that were visited to fill sixteen results count for sixteen.
    points = curve_points(rows, loss="npairs", database="test", metric="pr_16")
    assert points == {"ours": [(90.0, 57.0)]}


def test_the_frontier_has_what_nothing_beats():
    points = [(10.0, 60.0), (20.0, 61.0), (30.0, 59.0), (30.0, 58.0), (40.0, 59.0)]
    assert frontier(points) == [(20.0, 61.0), (40.0, 59.0)]
    assert frontier([]) == []
    assert height_at(points, 20.0) == 61.0
    assert height_at(points, 20.1) == 59.0
    assert height_at(points, 41.0) is None


def test_precision_against_speedup_draws_points_frontier_and_the_paper(tmp_path, make_row):
    rows = [
        make_row("metric", sparsity=0, suf=1.0, pr_1=57.0, pr_16=50.0),
        make_row("ours+", suf=98.0, pr_1=60.0, pr_16=57.0),
        make_row("ours+", variant="n_probe=2", suf=49.0, pr_1=61.0, pr_16=57.5),
        make_row("ours+", variant="n_codes=9", suf=40.0, pr_1=60.5, pr_16=57.2),
    ]
    paper = {"ours": {"suf": 101.1, "pr_1": 58.28}, "vq": {}}
    path = tmp_path / "new" / "curve.png"
    figure = plot_precision_speedup(path, rows, loss="npairs", database="test", title="a title",
                                    paper=paper)  # fmt: skip
    left, right = figure.axes
    assert (left.get_ylabel(), right.get_ylabel()) == ("Pr@1, %", "Pr@16, %")
    assert left.get_xscale() == "log"
    assert labels_of(left) == ["Metric", "Ours+"]
    lines = [points_of(line) for line in left.get_lines()]
    assert [(49.0, 61.0), (98.0, 60.0)] in lines  # the frontier
    assert [(40.0, 60.5), (49.0, 61.0), (98.0, 60.0)] in lines  # all points
    assert [(101.1, 58.28)] in lines  # the paper's mark, where it has one
    assert [(101.1, 58.28)] not in [points_of(line) for line in right.get_lines()]
    assert figure.get_suptitle() == "a title"
    with Image.open(path) as image:
        assert image.size == (1248, 528)


def test_occupancy_draws_sizes_by_rank_and_shares(tmp_path):
    histograms = {"ours": [(1, 3), (100, 2)], "vq": [(7, 1)]}
    figure = plot_occupancy(tmp_path / "occupancy.png", histograms)
    left, right = figure.axes
    assert labels_of(left) == ["Ours (5 buckets)", "VQ (1 buckets)"]
    assert points_of(left.get_lines()[0]) == [(1, 100), (2, 100), (3, 1), (4, 1), (5, 1)]
    assert points_of(right.get_lines()[0]) == [(1, pytest.approx(300 / 203)), (100, 100.0)]


def test_the_ablation_draws_a_panel_per_setting(tmp_path):
    points = [{"value": v, "pr_1": 5.0 + v, "pr_16": 3.0, "suf": 9.0} for v in (0.01, 0.1)]
    figure = plot_ablation(tmp_path / "ablation.png", {"alpha": points, "depth": points[:1]})
    assert [axes.get_xlabel() for axes in figure.axes if axes.get_xlabel()] == ["alpha", "depth"]
    alpha = figure.axes[0]
    assert [tick.get_text() for tick in alpha.get_xticklabels()] == ["0.01", "0.1"]
    assert points_of(alpha.get_lines()[0]) == [(0, 5.01), (1, 5.1)]
    assert labels_of(alpha) == ["Pr@1", "Pr@16", "SUF"]


def test_solver_times_are_drawn_in_milliseconds_by_classes(tmp_path):
    seconds = {"ours": {(64, 16): 1e-4, (64, 32): 2e-4, (128, 16): 2e-4}, "other": {(64, 16): 1e-3}}
    figure = plot_solver_seconds(tmp_path / "solver.png", seconds)
    assert [axes.get_title() for axes in figure.axes] == ["64 classes", "128 classes"]
    first, second = figure.axes
    assert points_of(first.get_lines()[0]) == [(16, 0.1), (32, 0.2)]
    assert len(first.get_lines()) == 2
    assert len(second.get_lines()) == 1


# -- the tree --------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_tree_shows_its_buckets_and_images(tmp_path, depth):
    shape = CodeShape(width=3, depth=depth)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(20, 4, 4, 3), dtype=np.uint8)
    buckets = rng.integers(0, shape.n_buckets, size=20)
    labels = np.arange(20) % 3
    path = tmp_path / "new" / "tree.png"
    figure = draw_tree(path, images, labels, shape, buckets)
    ids, counts = np.unique(buckets, return_counts=True)
    (axes,) = figure.axes
    assert len(axes.get_images()) == sum(min(6, count) for count in counts)
    titles = [text.get_text() for text in axes.texts if " of " in text.get_text()]
    assert len(titles) == len(ids)
    assert sum(int(title.rpartition(" ")[2]) for title in titles) == 20
    nodes = {tuple(p[: level + 1]) for p in shape.paths(ids).tolist() for level in range(depth)}
    assert len(axes.get_lines()) == len(nodes)
    with Image.open(path) as image:
        assert image.mode == "P"  # a palette halves the file
        assert len(image.convert("RGB").getcolors(1 << 20)) > 20

    names = ["ant", "aquarium_fish", "a long name of a class"]
    figure = draw_tree(tmp_path / "some.png", images, labels, shape, buckets,
                       class_names=names, max_leaves=2, min_items=2)  # fmt: skip
    titles = [text.get_text() for text in figure.axes[0].texts if " of " in text.get_text()]
    assert 1 <= len(titles) <= 2
    assert "of them shown" in figure.get_suptitle()


def test_branches_are_drawn_whole_the_richest_first():
    shape = CodeShape(width=4, depth=2)
    buckets = np.array([0, 1, 2] + [4] * 9 + [8, 9, 8, 9] + [12, 13])
    assert select_leaves(buckets, shape).tolist() == [0, 1, 2, 4, 8, 9, 12, 13]
    assert select_leaves(buckets, shape, max_leaves=5).tolist() == [0, 1, 2, 8, 9]
    assert select_leaves(buckets, shape, max_leaves=4).tolist() == [0, 1, 2, 4]
    assert select_leaves(buckets, shape, min_items=2).tolist() == [4, 8, 9]
    assert select_leaves(np.array([0, 1, 1, 2]), shape, max_leaves=2).tolist() == [0, 1]
