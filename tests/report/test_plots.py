import numpy as np
import pytest

from hashcade import CodeShape
from hashcade.report import (
    draw_tree,
    plot_ablation,
    plot_occupancy,
    plot_precision_speedup,
    plot_solver_seconds,
)
from hashcade.report._plots import curve_points, frontier, height_at
from hashcade.report._tree import chosen_leaves

PNG = b"\x89PNG\r\n\x1a\n"


def test_points_of_a_curve_are_means_over_seeds_by_speedup(make_row):
    rows = [
        make_row("vq", variant="n_centroids=128", seed=0, suf=110.0, pr_1=60.0),
        make_row("vq", variant="n_centroids=128", seed=1, suf=112.0, pr_1=61.0),
        make_row("vq", suf=50.0, pr_1=61.5),
        make_row("vq", suf=50.0, pr_1=99.0, database="train"),
        make_row("ours", suf=98.0, pr_1=60.0, pr_16=57.0, suf_16=90.0),
    ]
    points = curve_points(rows, loss="npairs", database="test", figure="pr_1")
    assert points == {"vq": [(50.0, 61.5), (111.0, 60.5)], "ours": [(98.0, 60.0)]}
    # What was looked at to fill sixteen results counts for sixteen.
    points = curve_points(rows, loss="npairs", database="test", figure="pr_16")
    assert points == {"ours": [(90.0, 57.0)]}


def test_frontier_keeps_what_nothing_beats():
    points = [(10.0, 60.0), (20.0, 61.0), (30.0, 59.0), (30.0, 58.0), (40.0, 59.0)]
    assert frontier(points) == [(20.0, 61.0), (40.0, 59.0)]
    assert frontier([]) == []
    assert height_at(points, 20.0) == 61.0
    assert height_at(points, 20.1) == 59.0
    assert height_at(points, 41.0) is None


def test_plots_are_written(tmp_path, make_row):
    rows = [
        make_row("metric", sparsity=0, suf=1.0, pr_1=57.0, pr_16=50.0),
        make_row("ours+", suf=98.0, pr_1=60.0, pr_16=57.0),
        make_row("ours+", variant="n_probe=2", suf=49.0, pr_1=61.0, pr_16=57.5),
    ]
    paper = {"ours": {"suf": 101.1, "pr_1": 58.28}}
    plot_precision_speedup(tmp_path / "a" / "curve.png", rows, loss="npairs", database="test",
                           paper=paper)  # fmt: skip
    plot_occupancy(tmp_path / "occupancy.png", {"ours": [(1, 3), (100, 5)], "vq": [(7, 1)]})
    points = [{"value": v, "pr_1": 5.0, "pr_16": 3.0, "suf": 9.0} for v in (0.01, 0.1)]
    plot_ablation(tmp_path / "ablation.png", {"alpha": points, "depth": points[:1]})
    plot_solver_seconds(tmp_path / "solver.png", {"ours": {(64, 16): 1e-4, (128, 16): 2e-4}})
    files = [*tmp_path.glob("*.png"), *tmp_path.glob("*/*.png")]
    assert len(files) == 4
    assert all(file.read_bytes().startswith(PNG) for file in files)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_tree_is_drawn_for_any_depth(tmp_path, depth):
    shape = CodeShape(width=3, depth=depth)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(20, 4, 4, 3), dtype=np.uint8)
    buckets = rng.integers(0, shape.n_buckets, size=20)
    draw_tree(tmp_path / "new" / "tree.png", images, np.arange(20) % 3, shape, buckets)
    assert (tmp_path / "new" / "tree.png").read_bytes().startswith(PNG)
    names = ["ant", "aquarium_fish", "a long name of a class"]
    draw_tree(tmp_path / "some.png", images, np.arange(20) % 3, shape, buckets,
              class_names=names, max_leaves=2, min_items=2)  # fmt: skip
    assert (tmp_path / "some.png").read_bytes().startswith(PNG)


def test_branches_are_drawn_whole_the_richest_first():
    shape = CodeShape(width=4, depth=2)
    buckets = np.array([0, 1, 2] + [4] * 9 + [8, 9, 8, 9] + [12, 13])
    assert chosen_leaves(buckets, shape).tolist() == [0, 1, 2, 4, 8, 9, 12, 13]
    assert chosen_leaves(buckets, shape, max_leaves=5).tolist() == [0, 1, 2, 8, 9]
    assert chosen_leaves(buckets, shape, max_leaves=4).tolist() == [0, 1, 2, 4]
    assert chosen_leaves(buckets, shape, min_items=2).tolist() == [4, 8, 9]
    assert chosen_leaves(np.array([0, 1, 1, 2]), shape, max_leaves=2).tolist() == [0, 1]
