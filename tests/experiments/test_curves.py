"""Precision over SUF and over time, on tiny data."""

import numpy as np
import pytest
from test_classes import make_tiny

from experiments import curves
from experiments.curves_page import POINTS, TIMES, above_over_suf, above_over_time
from experiments.rivals import nearest_part, split_classes
from experiments.rows import RowFile


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder of a finished run, what started it, and its result."""
    pytest.importorskip("faiss")
    pytest.importorskip("hnswlib")
    folder = tmp_path_factory.mktemp("curves")
    patch = pytest.MonkeyPatch()
    make_tiny(patch, min_steps=300)
    patch.setattr(curves, "PARTS", (2, 3))
    patch.setattr(curves, "LISTS", (1, 2))
    patch.setattr(curves, "EF", (16,))
    patch.setattr(curves, "LOWEST_SUF", 3)
    patch.setattr(curves, "ROUNDS", 1)

    def run(**options):
        return curves.run(
            **{"data_sets": ["clinc150"], "verbose": False, "output": folder / "out",
               "work": folder / "work", **options}
        )  # fmt: skip

    yield folder / "out", run, run()
    patch.undo()


def rows_of(finished, experiment):
    rows = RowFile(finished[0] / "rows" / "curves.jsonl").rows()
    return {
        (r.key.method, r.key.database, r.key.variant): r.metrics
        for r in rows
        if r.key.experiment == experiment
    }


def test_every_setting_has_a_point_and_a_time(finished):
    points, times = rows_of(finished, POINTS), rows_of(finished, TIMES)
    # 8 classes: one or two buckets, parts 2 and 3; k-means 2 and 4 (1, 2, 3, 5) settings.
    assert len(points) == 2 * ((3 * 4 + 2 + 4) * 2 + 1)
    assert {(m, v) for m, _, v in points} == {(m, v) for m, _, v in times}
    assert all(t["alone_us"] > 0 and t["batch_us"] > 0 for t in times.values())
    assert finished[2][0] == len(points) + len(times)


@pytest.mark.slow
def test_a_finished_run_measures_nothing_and_again_only_times(finished):
    folder, run, _ = finished
    points, times = rows_of(finished, POINTS), rows_of(finished, TIMES)
    assert run()[0] == 0
    assert run(again="times")[0] == len(times)
    assert rows_of(finished, POINTS) == points
    assert rows_of(finished, TIMES) != times
    text = (folder / "curves.md").read_text()
    assert "curves-clinc150-suf.png" in text
    assert (folder / "curves-clinc150-time.png").is_file()


@pytest.mark.parametrize("method", ["prototype", "softmax", "means"])
def test_parts_of_a_class_raise_the_speedup_and_keep_the_decision(finished, method):
    points = rows_of(finished, POINTS)
    whole, parts = (points[method, "train", f"rerank=learned,parts={n},n_probe=1"] for n in (1, 3))
    assert parts["suf_1"] > 1.5 * whole["suf_1"]
    assert parts["pr_1"] == pytest.approx(whole["pr_1"])  # items lie with their class


def test_unknown_words_are_errors(finished):
    with pytest.raises(ValueError, match="method 'ivf' must be one of"):
        finished[1](methods=["ivf"])


def test_points_above_ours_are_listed():
    ours = [(50.0, 60.0), (100.0, 55.0)]
    curves = {"prototype": ours, "means": [(40.0, 59.0), (100.5, 56.0), (200.0, 10.0)]}
    assert above_over_suf(curves, 200.0) == [
        "nearest class mean at SUF 100.5 56.00 (55.00), SUF 200.0 10.00 (ours: none)"
    ]
    assert above_over_time(curves) == [
        "nearest class mean at faster than any of ours, 40 µs, up to 59.00"
    ]
    assert above_over_time({"prototype": ours, "means": [(60.0, 61.0)]}) == [
        "nearest class mean at 60 µs 61.00 (60.00)"
    ]
    assert above_over_suf({"prototype": ours, "means": [(49.9, 60.0)]}, 200.0) == []
    assert above_over_suf({"prototype": ours, "means": [(300.0, 60.0)]}, 200.0) == []


def test_split_classes_finds_the_parts():
    rng = np.random.default_rng(0)
    centres = np.array([[0, 0], [0, 9], [50, 0], [50, 9]], np.float32)
    which = np.repeat(np.arange(4), 30)
    vectors = (centres[which] + rng.normal(size=(120, 2))).astype(np.float32)
    labels = which // 2
    centroids = split_classes(vectors, labels, 2, seed=0)
    assert centroids.shape == (2, 2, 2)
    part = labels * 2 + nearest_part(vectors, labels, centroids)
    assert len(set(zip(which.tolist(), part.tolist(), strict=True))) == 4
