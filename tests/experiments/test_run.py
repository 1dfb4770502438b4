"""A run computes what is missing, stores every row, resumes, and writes a page."""

import json
import re
import shutil

import pytest

from experiments import presets
from experiments import run as run_module
from experiments.__main__ import RESULTS, main, run
from experiments.jobs import EXPERIMENTS
from experiments.render import BEGIN, END
from experiments.rows import ResultRow, RowFile
from experiments.run import Experiment
from hashcade.errors import DataError
from hashcade.evaluate import evaluate_hasher

OF_THE_PAPER = [
    path
    for path in sorted((RESULTS / "rows").glob("*.jsonl"))
    if path.stem.startswith(tuple(EXPERIMENTS))
]

ONLY = ["metric", "th", "vq", "ours", "ours+", "npairs", "k0", "k1"]
ROWS = "rows/cifar100-smoke.jsonl"


def again(folder, **changes):
    options = {"output": folder / "out", "work": folder / "work", "only": ONLY, "seeds": (0, 1)}
    return run("cifar100", "smoke", **{**options, "verbose": False, **changes})


@pytest.fixture
def copied(finished, tmp_path):
    """A finished run of one's own, to be spoiled."""
    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def measured(monkeypatch):
    """Jobs that are really computed."""
    names = []
    measure = Experiment.measure

    def noted(self, job, keys):
        names.append((job.method, job.variant, job.seed, sorted({k.database for k in keys})))
        return measure(self, job, keys)

    monkeypatch.setattr(Experiment, "measure", noted)
    return names


def test_every_row_has_what_it_takes(finished):
    _, outcome = finished
    assert outcome.n_new == len(outcome.rows) > 15
    for row in outcome.rows:
        assert {"suf", "pr_1", "pr_4", "pr_16", "suf_16", "nmi"} <= set(row.metrics)
        assert 0 <= row.metrics["pr_1"] <= 100
        assert row.versions["hashcade"]
        assert row.seconds["evaluate"] > 0
        assert row.settings["base"]["random_state"] == row.key.seed
    by_key = {(r.key.method, r.key.variant, r.key.database, r.key.seed): r for r in outcome.rows}
    exact = by_key["metric", "", "test", 0]
    assert exact.metrics["suf"] == 1.0
    assert exact.metrics["pr_1"] > 80
    assert by_key["ours", "", "test", 0].metrics["suf"] > 4
    # What was seen with one seed is not what was seen with another.
    assert exact.metrics != by_key["metric", "", "test", 1].metrics
    # Curves and the methods that are not repeated: the first seed alone.
    assert ("vq", "n_centroids=16", "test", 0) in by_key
    assert ("vq", "n_centroids=16", "test", 1) not in by_key
    assert ("th", "", "test", 1) not in by_key
    # More buckets, fewer items left out.
    probed = by_key["ours+", "n_probe=2", "test", 0].metrics["suf"]
    assert probed < by_key["ours+", "", "test", 0].metrics["suf"]


def test_metrics_are_those_of_a_plain_evaluation(finished):
    """What is encoded once for all rows agrees with evaluating each hasher by itself."""
    folder, outcome = finished
    experiment = Experiment.load(
        "cifar100", "smoke", data=None, work=folder / "work", verbose=False
    )
    base = experiment.base("npairs", 0)
    for method in ("ours", "ours+"):
        (job,) = (j for j in experiment.jobs([0], [method, "npairs", "k1"]) if not j.change)
        hasher = experiment.fitted(job).hasher
        queries = (hasher, base.test_items, base.test_labels)
        train = (base.train_items, base.train_labels)
        plain = {"test": evaluate_hasher(*queries), "train": evaluate_hasher(*queries, *train)}
        for row in outcome.rows:
            if (row.key.method, row.key.variant, row.key.seed) == (method, "", 0):
                result = plain[row.key.database]
                assert row.metrics["pr_16"] == result.precision[16]
                assert row.metrics["suf_16"] == result.speedup[16]
                assert row.metrics["nmi"] == pytest.approx(result.nmi)


def test_nothing_is_computed_twice(copied, measured):
    outcome = again(copied)
    assert (outcome.n_new, measured) == (0, [])


def test_only_what_is_missing_is_computed_and_comes_out_the_same(copied, measured):
    path = copied / "out" / ROWS
    rows = [ResultRow.from_json(line, "row") for line in path.read_text().splitlines()]
    (lost,) = (
        r for r in rows
        if (r.key.method, r.key.variant, r.key.database, r.key.seed) == ("ours", "", "train", 1)
    )  # fmt: skip
    path.write_text("".join(row.to_json() + "\n" for row in rows if row != lost))
    outcome = again(copied)
    assert outcome.n_new == 1
    assert measured == [("ours", "", 1, ["train"])]
    (computed,) = (row for row in outcome.rows if row.key == lost.key)
    assert computed.metrics == lost.metrics


def test_other_settings_are_computed_anew(copied, measured, monkeypatch):
    smoke = presets.PRESETS["smoke"]

    def other(*arguments):
        recipe = smoke(*arguments)
        methods = {**recipe.by_method, "vq": {"max_iter": 3}}
        return type(recipe)(**{**vars(recipe), "by_method": methods})

    monkeypatch.setitem(presets.PRESETS, "smoke", other)
    again(copied)
    assert {method for method, *_ in measured} == {"vq"}


def test_an_interruption_loses_nothing_that_was_stored(tmp_path, monkeypatch, measured):
    folder = tmp_path / "run"
    only = ["metric", "th", "npairs"]
    count = 0
    append = RowFile.append

    def breaking(self, row):
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        append(self, row)

    with monkeypatch.context() as patch:
        patch.setattr(run_module.RowFile, "append", breaking)
        with pytest.raises(KeyboardInterrupt):
            again(folder, only=only, seeds=(0,))
    assert len(RowFile(folder / "out" / ROWS).rows()) == 4
    measured.clear()
    outcome = again(folder, only=only, seeds=(0,))
    assert outcome.n_new == len(outcome.rows) - 4
    assert ("metric", "", 0, ["test", "train"]) not in measured


def test_a_damaged_row_is_an_error_and_not_a_result(copied):
    file = copied / "out" / ROWS
    file.write_text(file.read_text().replace('"random_state": 1', '"random_state": 2', 1))
    with pytest.raises(DataError, match="fingerprint"):
        again(copied)


def test_the_page_has_tables_plots_and_the_command(finished):
    folder, outcome = finished
    text = outcome.page.read_text(encoding="utf-8")
    assert outcome.page == folder / "out" / "cifar100-smoke.md"
    assert "`python -m experiments cifar100 --preset smoke --seed 0 --seed 1`" in text
    assert "the numbers mean nothing" in text
    assert "| 1 | Th |" in text
    assert "± " in text
    for picture in re.findall(r"!\[[^]]*\]\(([^)]*)\)", text):
        assert (folder / "out" / picture).is_file()
    assert "cifar100-smoke-npairs-test.png" in text
    tables = json.loads((folder / "out" / "cifar100-smoke.json").read_text())
    assert len(tables) == 3
    assert (folder / "out" / "cifar100-smoke.tex").read_text().count("\\begin{table}") == 3
    # The number of the page is the one of the row.
    row = next(r for r in outcome.rows if (r.key.method, r.key.database) == ("th", "test"))
    line = next(line for line in text.splitlines() if line.startswith("| 1 | Th |"))
    assert f"{row.metrics['pr_1']:.2f}" in line


def test_a_page_can_be_written_from_rows_alone(copied):
    page = copied / "out" / "cifar100-smoke.md"
    before = page.read_text()
    shutil.rmtree(copied / "work")
    page.unlink()
    outcome = again(copied, render_only=True)
    assert page.read_text() == before
    assert outcome.n_new == 0


def test_text_around_the_generated_part_stays(copied):
    page = copied / "out" / "cifar100-smoke.md"
    before = page.read_text()
    title, generated = before.split(BEGIN)
    page.write_text(f"{title}What we saw: 42.\n\n{BEGIN}\nold\n{END}\n\n## Later\n\nMore.\n")
    again(copied, render_only=True)
    generated = generated.removesuffix("\n")
    assert (
        page.read_text() == f"{title}What we saw: 42.\n\n{BEGIN}{generated}\n\n## Later\n\nMore.\n"
    )


@pytest.mark.parametrize(
    "text", ["by hand\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n", f"{BEGIN}{BEGIN}{END}"]
)
def test_a_page_without_markers_is_not_overwritten(copied, text):
    page = copied / "out" / "cifar100-smoke.md"
    page.write_text(text)
    with pytest.raises(DataError, match="has no generated part to replace"):
        again(copied, render_only=True)
    assert page.read_text() == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cifar10", "smoke"), "experiment='cifar10' must be one of cifar100, imagenet"),
        (("cifar100", "fast"), "preset='fast' must be one of paper, cpu, scratch, transfer, smoke"),
    ],
)
def test_unknown_names(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        run(*arguments, output=tmp_path, work=tmp_path, verbose=False)
    assert not list(tmp_path.iterdir())


def test_unknown_restrictions_and_missing_data(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.__main__.default_data", lambda: None)
    places = {"output": tmp_path, "work": tmp_path, "verbose": False}
    with pytest.raises(ValueError, match="only='our' must be one of dch, flat, k0, k1"):
        run("cifar100", "smoke", only=["our"], **places)
    with pytest.raises(DataError, match="needs the official files") as caught:
        run("cifar100", "cpu", **places)
    assert "HASHCADE_DATA" in caught.value.hint
    with pytest.raises(DataError, match="has none of cifar-100-python"):
        run("cifar100", "cpu", data=tmp_path, **places)
    with pytest.raises(DataError, match="no rows to write a page from"):
        run("cifar100", "cpu", render_only=True, **places)


# -- the command line ------------------------------------------------------------------------------


def test_a_finished_run_reports_no_new_row(copied, capsys):
    options = ["--output", str(copied / "out"), "--work", str(copied / "work"), "--quiet"]
    only = [word for name in ONLY for word in ("--only", name)]
    assert (
        main(["cifar100", "--preset", "smoke", "--seed", "0", "--seed", "1", *options, *only]) == 0
    )
    out = capsys.readouterr().out
    assert re.match(r"\d+ rows, 0 new, ", out)
    assert f"page: {copied / 'out' / 'cifar100-smoke.md'}" in out


def test_an_error_is_one_line_with_the_way_out(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("experiments.__main__.default_data", lambda: None)
    assert main(["imagenet", "--preset", "cpu", "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "name their folder with --data" in error
    assert main(["cifar100", "--preset", "smoke", "--only", "x", "--output", str(tmp_path)]) == 2
    assert "only='x' must be one of" in capsys.readouterr().err


def test_the_help_names_every_experiment_and_preset(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for name in (*EXPERIMENTS, *presets.PRESETS):
        assert re.search(rf"^  {name} +\w", text, re.M)
    assert "python -m experiments cifar100 --preset transfer" in text


# -- whole experiments -----------------------------------------------------------------------------


def test_solver_time_is_shown_beside_the_paper(tmp_path):
    pytest.importorskip("ortools")
    outcome = run("solver-time", "smoke", output=tmp_path, verbose=False)
    assert outcome.n_new == 8
    assert all(0 < row.metrics["seconds"] < 10 for row in outcome.rows)
    text = outcome.page.read_text()
    assert re.search(r"^\| 512 \| 128 \| [\d.]+ \| [\d.]+ \| [\d.]+ \| 642\.610 \|$", text, re.M)
    assert run("solver-time", "smoke", output=tmp_path, verbose=False).n_new == 0


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_whole_smoke_preset(tmp_path, experiment):
    outcome = run(experiment, "smoke", output=tmp_path / "out", work=tmp_path / "work",
                  verbose=False)  # fmt: skip
    assert outcome.page.is_file()
    assert outcome.n_new == len(outcome.rows) > 0


@pytest.mark.slow
@pytest.mark.parametrize("stored", OF_THE_PAPER, ids=lambda path: path.stem)
def test_stored_rows_are_those_of_the_present_settings(stored, real_data, tmp_path, monkeypatch):
    """A run with the published seeds computes no stored row again, and the page is the same.

    Rows that were never computed may be missing: they take hours, and are not computed here.
    """
    rows = RowFile(stored).rows()
    key = rows[0].key
    missing = set()
    monkeypatch.setattr(Experiment, "measure", lambda _, job, keys: missing.update(keys) or [])
    shutil.copytree(RESULTS, tmp_path / "out")
    outcome = run(key.experiment, key.preset, output=tmp_path / "out", work=tmp_path / "work",
                  data=real_data, seeds=sorted({row.key.seed for row in rows}),
                  verbose=False)  # fmt: skip
    assert outcome.n_new == 0
    assert missing.isdisjoint(row.key for row in rows)
    assert outcome.page.read_text() == (RESULTS / outcome.page.name).read_text()
