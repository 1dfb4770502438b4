"""A run computes what is missing, stores every row, goes on after a break, and writes a page."""

import json
import re
import shutil

import pytest

from hashcade.errors import DataError
from hashcade.report import ResultRow
from hashcade.reproduce import EXPERIMENTS, PRESETS, reproduce
from hashcade.reproduce import _run as run_module

ONLY = ["metric", "th", "vq", "ours", "ours+", "npairs", "k0", "k1"]


def again(folder, **changes):
    options = {"out": folder / "out", "work": folder / "work", "only": ONLY, "seeds": (0, 1)}
    return reproduce("cifar100", "smoke", **{**options, "verbose": False, **changes})


@pytest.fixture
def copied(finished, tmp_path):
    """A finished run of one's own, to be spoiled."""
    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def measured(monkeypatch):
    """Jobs that are really computed."""
    names = []
    measure = run_module.Experiment.measure

    def noted(self, job, wanted):
        names.append((job.method, job.variant, job.seed, sorted({k.database for k in wanted})))
        return measure(self, job, wanted)

    monkeypatch.setattr(run_module.Experiment, "measure", noted)
    return names


def test_every_row_has_what_it_takes(finished):
    _, done = finished
    assert done.n_computed == len(done.rows) > 15
    for row in done.rows:
        assert {"suf", "pr_1", "pr_4", "pr_16", "suf_16", "nmi"} <= set(row.figures)
        assert 0 <= row.figures["pr_1"] <= 100
        assert row.versions["hashcade"]
        assert row.seconds["evaluate"] > 0
        assert row.settings["base"]["random_state"] == row.key.seed
    by_key = {(r.key.method, r.key.variant, r.key.database, r.key.seed): r for r in done.rows}
    exact = by_key["metric", "", "test", 0]
    assert exact.figures["suf"] == 1.0
    assert exact.figures["pr_1"] > 80
    assert by_key["ours", "", "test", 0].figures["suf"] > 4
    # What was seen with one seed is not what was seen with another.
    assert exact.figures != by_key["metric", "", "test", 1].figures
    # Curves and the methods that are not repeated: the first seed alone.
    assert ("vq", "n_centroids=16", "test", 0) in by_key
    assert ("vq", "n_centroids=16", "test", 1) not in by_key
    assert ("th", "", "test", 1) not in by_key
    # More buckets, fewer items left out.
    probed = by_key["ours+", "n_probe=2", "test", 0].figures["suf"]
    assert probed < by_key["ours+", "", "test", 0].figures["suf"]


def test_figures_are_those_of_a_plain_evaluation(finished):
    """The shared way through scores and books agrees with evaluating each hasher by itself."""
    from hashcade.evaluate import evaluate_paper
    from hashcade.reproduce._run import Experiment

    folder, done = finished
    running = Experiment.load("cifar100", "smoke", data=None, work=folder / "work", verbose=False)
    base = running.base("npairs", 0)
    for method in ("ours", "ours+"):
        (job,) = (j for j in running.jobs([0], [method, "npairs", "k1"]) if not j.change)
        hasher = running.fitted(job).hasher
        plain = evaluate_paper(
            hasher, base.test_items, base.test_labels, base.train_items, base.train_labels
        )
        for row in done.rows:
            if (row.key.method, row.key.variant, row.key.seed) == (method, "", 0):
                figures = plain[row.key.database]
                assert row.figures["pr_16"] == figures.precision[16]
                assert row.figures["suf_16"] == figures.speedup[16]
                assert row.figures["nmi"] == pytest.approx(figures.nmi)


def test_nothing_is_computed_twice(copied, measured):
    done = again(copied)
    assert (done.n_computed, measured) == (0, [])


def test_only_what_is_missing_is_computed_and_comes_out_the_same(copied, measured):
    rows = copied / "out" / "rows" / "cifar100-smoke"
    lost = rows / "ours-npairs-k1-train-s1.json"
    before = ResultRow.from_json(lost.read_text(), "lost")
    lost.unlink()
    done = again(copied)
    assert done.n_computed == 1
    assert measured == [("ours", "", 1, ["train"])]
    assert ResultRow.from_json(lost.read_text(), "lost").figures == before.figures


def test_other_settings_are_computed_anew(copied, measured, monkeypatch):
    from hashcade.reproduce import _presets

    smoke = _presets.PRESETS["smoke"]

    def other(*arguments):
        recipe = smoke(*arguments)
        methods = {**recipe.by_method, "vq": {"max_iter": 3}}
        return type(recipe)(**{**vars(recipe), "by_method": methods})

    monkeypatch.setitem(_presets.PRESETS, "smoke", other)
    again(copied)
    assert {method for method, *_ in measured} == {"vq"}


def test_a_break_loses_nothing_that_was_stored(tmp_path, monkeypatch, measured):
    folder = tmp_path / "run"
    only = ["metric", "th", "npairs"]
    count = 0
    put = run_module.RowStore.put

    def breaking(self, row):
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        put(self, row)

    with monkeypatch.context() as patch:
        patch.setattr(run_module.RowStore, "put", breaking)
        with pytest.raises(KeyboardInterrupt):
            again(folder, only=only, seeds=(0,))
    stored = list((folder / "out" / "rows" / "cifar100-smoke").iterdir())
    assert len(stored) == 4
    assert not [path for path in stored if path.suffix != ".json"]
    measured.clear()
    done = again(folder, only=only, seeds=(0,))
    assert done.n_computed == len(done.rows) - 4
    assert ("metric", "", 0, ["test", "train"]) not in measured


def test_a_damaged_row_is_an_error_and_not_a_figure(copied):
    file = copied / "out" / "rows" / "cifar100-smoke" / "ours-npairs-k1-train-s1.json"
    file.write_text(file.read_text().replace('"random_state": 1', '"random_state": 2'))
    with pytest.raises(DataError, match="fingerprint"):
        again(copied)


def test_the_page_has_tables_plots_and_the_command(finished):
    folder, done = finished
    text = done.page.read_text(encoding="utf-8")
    assert done.page == folder / "out" / "cifar100-smoke.md"
    assert "`hashcade reproduce cifar100 --preset smoke --seed 0 --seed 1`" in text
    assert "no figure here means anything" in text
    assert "| 1 | Th |" in text
    assert "± " in text
    for picture in re.findall(r"!\[[^]]*\]\(([^)]*)\)", text):
        assert (folder / "out" / picture).is_file()
    assert "cifar100-smoke-npairs-test.png" in text
    tables = json.loads((folder / "out" / "cifar100-smoke.json").read_text())
    assert len(tables) == 3
    assert (folder / "out" / "cifar100-smoke.tex").read_text().count("\\begin{table}") == 3
    # The figure of the page is the one of the row.
    row = next(r for r in done.rows if (r.key.method, r.key.database) == ("th", "test"))
    line = next(line for line in text.splitlines() if line.startswith("| 1 | Th |"))
    assert f"{row.figures['pr_1']:.2f}" in line


def test_a_page_can_be_written_from_rows_alone(copied):
    page = copied / "out" / "cifar100-smoke.md"
    before = page.read_text()
    shutil.rmtree(copied / "work")
    page.unlink()
    done = again(copied, render_only=True)
    assert page.read_text() == before
    assert done.n_computed == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cifar10", "smoke"), "experiment='cifar10' must be one of cifar100, imagenet"),
        (("cifar100", "fast"), "preset='fast' must be one of paper, cpu, transfer, smoke"),
    ],
)
def test_unknown_names(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        reproduce(*arguments, out=tmp_path, work=tmp_path, verbose=False)
    assert not list(tmp_path.iterdir())


def test_unknown_restrictions_and_missing_data(tmp_path, monkeypatch):
    monkeypatch.delenv("HASHCADE_DATA", raising=False)
    with pytest.raises(ValueError, match="only='our' must be one of dch, flat, k0, k1"):
        reproduce("cifar100", "smoke", out=tmp_path, work=tmp_path, only=["our"], verbose=False)
    with pytest.raises(DataError, match="official files are needed"):
        reproduce("cifar100", "cpu", out=tmp_path, work=tmp_path, verbose=False)
    with pytest.raises(DataError, match="has none of cifar-100-python"):
        reproduce("cifar100", "cpu", out=tmp_path, work=tmp_path, data=tmp_path, verbose=False)
    with pytest.raises(DataError, match="no rows to write a page from"):
        reproduce("cifar100", "cpu", out=tmp_path, work=tmp_path, render_only=True, verbose=False)


def test_solver_time_stands_beside_the_paper(tmp_path):
    pytest.importorskip("ortools")
    done = reproduce("solver-time", "smoke", out=tmp_path, work=tmp_path, verbose=False)
    assert done.n_computed == 8
    assert all(0 < row.figures["seconds"] < 10 for row in done.rows)
    text = done.page.read_text()
    assert re.search(r"^\| 512 \| 128 \| [\d.]+ \| [\d.]+ \| [\d.]+ \| 642\.610 \|$", text, re.M)
    assert reproduce("solver-time", "smoke", out=tmp_path, work=tmp_path,
                     verbose=False).n_computed == 0  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_whole_smoke_preset(tmp_path, experiment):
    done = reproduce(experiment, "smoke", out=tmp_path / "out", work=tmp_path / "work",
                     verbose=False)  # fmt: skip
    assert done.page.is_file()
    assert done.n_computed == len(done.rows) > 0
    assert "smoke" in PRESETS
