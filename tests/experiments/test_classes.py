"""The comparison on many classes, on tiny data."""

import numpy as np
import pytest

from experiments import classes
from experiments.datasets import Dataset
from experiments.rows import RowFile
from hashcade.data import LabelledItems

METHODS = ["exhaustive", "means", "kmeans", "softmax", "prototype", "codebook", "path", "triplet",
           "prototype-flat"]  # fmt: skip


def tiny_set(name, data):
    rng = np.random.default_rng(0)
    centres = 2 * rng.normal(size=(8, 6))
    parts = []
    for size in (24, 20):
        y = np.repeat(np.arange(8), size)
        X = centres[y] + rng.normal(size=(len(y), 6))
        parts.append(LabelledItems.from_arrays(X, y))
    return Dataset(name, "", *parts)


def make_tiny(patch, *, min_steps):
    """Let the methods learn for a moment, on tiny data."""
    settings = classes.method_settings

    def few_steps(data_set, method, seed):
        steps = {"steps": 20} if method in classes.OURS else {}
        return {**settings(data_set, method, seed), **steps}

    patch.setattr(classes, "load_embeddings", tiny_set)
    patch.setattr(classes, "method_settings", few_steps)
    patch.setattr(classes, "HIDDEN_SIZE", {"clinc150": 16, "han-2000": 16})
    patch.setattr(classes.rivals, "REGULARIZATIONS", ((5e-4, 0.0),))
    patch.setattr(classes.rivals, "MIN_STEPS", min_steps)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder of a finished run, and what started it."""
    folder = tmp_path_factory.mktemp("classes")
    patch = pytest.MonkeyPatch()
    make_tiny(patch, min_steps=500)

    def run(**options):
        return classes.run(
            **{"data_sets": ["clinc150", "han-2000"], "methods": METHODS, "verbose": False,
               "output": folder / "out", "work": folder / "work", **options}
        )  # fmt: skip

    yield folder, run, run()
    patch.undo()


@pytest.fixture
def rows(finished):
    return RowFile(finished[0] / "out" / "rows" / "classes.jsonl").rows()


def test_every_row_is_there(finished, rows):
    _, _, (n_new, _) = finished
    # Two kinds of vectors; of clinc150 two databases; placed in two ways, but four methods in one.
    assert n_new == len(rows) == (2 + 1) * 2 * (5 * 2 + 4)
    for row in rows:
        last = "pr_4" if row.key.preset == "han-2000" else "pr_16"
        assert {"suf", "pr_1", last} <= set(row.metrics)
        timed = {"alone_us", "batch_us"} <= set(row.metrics)
        assert timed == (row.key.method != "exhaustive")
        assert ("decided" in row.metrics) == (
            row.key.method not in ("exhaustive", "kmeans", "path", "triplet")
        )
        assert row.key.database == "train" or row.key.preset == "clinc150"


def test_placed_by_label_a_result_is_right_if_the_decision_is(rows):
    by_label = [row for row in rows if "place=label" in row.key.variant]
    assert by_label
    for row in by_label:
        assert row.metrics["pr_1"] == pytest.approx(row.metrics["decided"])


def test_prototypes_searched_flat_decide_as_the_prototypes_do(rows):
    decided = {row.key.method: row.metrics["decided"] for row in rows if "decided" in row.metrics}
    assert decided["prototype-flat"] == pytest.approx(decided["prototype"])
    assert min(decided["means"], decided["softmax"]) > 80


def test_exhaustive_search_looks_at_everything_but_the_query(rows):
    for row in rows:
        if row.key.method == "exhaustive":
            assert row.metrics["suf"] == 1.0
            assert row.metrics["pr_1"] < 100.0


def test_nothing_is_computed_twice(finished, monkeypatch):
    _, run, _ = finished
    monkeypatch.setattr(classes, "measure", None)
    assert run()[0] == 0


def test_a_missing_row_is_computed_without_a_second_fit(finished, monkeypatch):
    folder, run, _ = finished
    path = folder / "out" / "rows" / "classes.jsonl"
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    dropped = next(n for n, line in enumerate(lines) if '"softmax"' in line and "learned" in line)
    path.write_text("".join(lines[:dropped] + lines[dropped + 1 :]))
    monkeypatch.setattr(classes.rivals, "fit_softmax", None)
    monkeypatch.setattr(classes.Hasher, "fit", None)
    assert run()[0] == 1
    rows = RowFile(path).rows()
    path.write_text(whole)
    assert [row.key for row in rows] == [row.key for row in RowFile(path).rows()]
    for one, two in zip(rows, RowFile(path).rows(), strict=True):
        times = ("alone_us", "batch_us")
        assert all(one.metrics[name] == two.metrics[name] for name in one.metrics.keys() - times)


def test_the_page_keeps_what_was_written_by_hand(finished):
    _, run, (_, page) = finished
    text = page.read_text()
    page.write_text(text.replace("# Many classes", "# A title by hand") + "The end.\n")
    assert run(render_only=True) == (0, page)
    again = page.read_text()
    assert again.startswith("# A title by hand")
    assert again.endswith("The end.\n")
    assert "| label | softmax classifier |" in again
    assert "### test in train" in again
    page.write_text(text)
    run(render_only=True)
    assert page.read_text() == text


def test_unknown_names_are_refused(capsys, tmp_path):
    assert classes.main(["--data-set", "mnist", "--output", str(tmp_path)]) == 2
    assert "data set 'mnist' must be one of cifar100" in capsys.readouterr().err
    assert classes.main(["--method", "svm", "--output", str(tmp_path)]) == 2
    assert "method 'svm' must be one of exhaustive, means" in capsys.readouterr().err
