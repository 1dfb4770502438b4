"""The store, the folder of intermediate results, the estimate of time, and where we stand."""

import threading
import time

import numpy as np
import pytest

from hashcade import Hasher
from hashcade.errors import StorageError
from hashcade.report import ResultRow, RowKey
from hashcade.reproduce._progress import Progress
from hashcade.reproduce._standing import against_paper, against_rivals, at_own_speedup, remapping
from hashcade.reproduce._store import RowStore, write_whole
from hashcade.reproduce._work import WorkFolder


def make_row(method="ours", *, experiment="cifar100", loss="npairs", sparsity=1, database="test",
             variant="", seed=0, settings=None, **figures):  # fmt: skip
    key = RowKey(experiment=experiment, preset="cpu", method=method, loss=loss, sparsity=sparsity,
                 database=database, variant=variant, seed=seed)  # fmt: skip
    return ResultRow(key=key, settings=settings or {}, figures=figures)


# -- store -------------------------------------------------------------------------------------


def test_a_row_is_found_if_its_settings_are_the_same(tmp_path):
    store = RowStore(tmp_path / "new")
    assert store.rows() == []
    row = make_row(settings={"steps": 5}, pr_1=50.0)
    assert store.get(row.key, row.fingerprint) is None
    store.put(row)
    assert store.get(row.key, row.fingerprint) == row
    other = make_row(settings={"steps": 6}, pr_1=51.0)
    assert store.get(other.key, other.fingerprint) is None
    store.put(other)
    assert store.rows() == [other]


def test_writing_leaves_the_old_text_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "row.json"
    write_whole(path, "old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(StorageError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


# -- work --------------------------------------------------------------------------------------


def test_arrays_are_computed_once_for_the_same_settings(tmp_path):
    work = WorkFolder(tmp_path)
    calls = []

    def compute():
        calls.append(1)
        return np.arange(3.0)

    for settings in ({"a": 1}, {"a": 1}, {"a": 2}):
        np.testing.assert_array_equal(work.array("x", settings, compute), [0, 1, 2])
    assert len(calls) == 2
    damaged = next((tmp_path / "arrays").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:50])
    with pytest.raises(StorageError, match="remove it"):
        [work.array("x", settings, compute) for settings in ({"a": 1}, {"a": 2})]


def test_a_broken_training_goes_on_and_its_checkpoints_go_away(tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 12)
    X = rng.normal(size=(4, 6))[y] + 0.1 * rng.normal(size=(48, 6))
    work = WorkFolder(tmp_path)
    attempts = []

    def fit(run_dir):
        attempts.append(run_dir)
        if len(attempts) == 1:
            raise KeyboardInterrupt
        return Hasher(width=4, steps=5, run_dir=run_dir).fit(X, y)

    with pytest.raises(KeyboardInterrupt):
        work.hasher("ours", {"steps": 5}, fit)
    first = work.hasher("ours", {"steps": 5}, fit)
    again = work.hasher("ours", {"steps": 5}, fit)
    assert len(attempts) == 2
    assert attempts[0] == attempts[1]
    assert not attempts[1].exists()
    np.testing.assert_array_equal(first.scores(X), again.scores(X))


def test_of_two_who_want_the_same_model_one_trains_and_the_other_waits(tmp_path):
    X, y = np.eye(8, dtype=np.float32).repeat(5, axis=0), np.arange(8).repeat(5)
    begun, attempts, found = threading.Event(), [], []

    def fit(run_dir):
        attempts.append(run_dir)
        begun.set()
        time.sleep(0.3)  # long enough for the other to come
        return Hasher(width=4, steps=5, run_dir=run_dir).fit(X, y)

    def want():
        found.append(WorkFolder(tmp_path).hasher("ours", {"steps": 5}, fit))

    both = [threading.Thread(target=want) for _ in range(2)]
    both[0].start()
    assert begun.wait(10)
    both[1].start()
    for one in both:
        one.join(60)
    assert len(attempts) == 1
    np.testing.assert_array_equal(found[0].scores(X), found[1].scores(X))


def test_the_time_of_a_broken_training_is_counted_too(tmp_path, monkeypatch):
    work, clock = WorkFolder(tmp_path), 0.0
    monkeypatch.setattr("time.process_time", lambda: clock)
    X, y = np.eye(8, dtype=np.float32).repeat(5, axis=0), np.arange(8).repeat(5)
    assert work.training_seconds("ours", {"steps": 5}) == 0.0

    def broken(run_dir):
        nonlocal clock
        clock += 20.0
        raise KeyboardInterrupt

    def whole(run_dir):
        nonlocal clock
        clock += 30.0
        return Hasher(width=4, steps=5, run_dir=run_dir).fit(X, y)

    with pytest.raises(KeyboardInterrupt):
        work.hasher("ours", {"steps": 5}, broken)
    work.hasher("ours", {"steps": 5}, whole)
    assert work.training_seconds("ours", {"steps": 5}) == 50.0


# -- progress ----------------------------------------------------------------------------------


def test_the_time_left_follows_the_pace(monkeypatch, capsys):
    clock = 0.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    progress = Progress(100.0, 3)
    assert progress.seconds_left() == 100.0
    progress.begin("one")
    clock += 20.0  # twice as slow as expected
    progress.end(10.0)
    assert progress.seconds_left() == 180.0
    progress.begin("two")
    assert "[2/3] two, 3 min left" in capsys.readouterr().err


# -- where we stand ----------------------------------------------------------------------------


def test_cells_under_the_paper_are_named():
    rows = [make_row("ours", suf=101.1, pr_1=58.0, pr_4=60.0, pr_16=60.0),
            make_row("ours", sparsity=2, suf=70.0, pr_1=58.0, pr_4=57.0, pr_16=56.0)]  # fmt: skip
    text = against_paper(rows, "cifar100", "ours", ["npairs", "triplet"], ["test", "train"])
    assert "in 7 of 8 cells" in text
    assert "under it in: npairs k_s = 1 test Pr@1 58.00 (58.28)." in text
    assert against_paper([], "cifar100", "ours", ["npairs"], ["test"]) == ""


def test_where_a_rival_is_better_it_is_said():
    rows = [
        make_row("ours+", suf=100.0, pr_1=60.0, suf_1=100.0),
        make_row("ours+", variant="n_probe=2", suf=50.0, pr_1=60.5, suf_1=50.0),
        make_row("vq", suf=60.0, pr_1=61.0, suf_1=60.0),
        make_row("vq", variant="n_centroids=256", suf=160.0, pr_1=59.0, suf_1=160.0),
    ]
    table, lost = against_rivals(rows, loss="npairs", database="test")
    assert "| 97 | Pr@1 | 60.00 | 59.00 (VQ) | +1.00 |" in table
    assert "| 50 | Pr@1 | 60.50 | 61.00 (VQ) | -0.50 |" in table
    assert "| 150 | Pr@1 | – | 59.00 (VQ) | – |" in table
    assert "Pr@1 at SUF 50 (VQ, -0.50)" in lost
    assert "Pr@1 at SUF 150 (VQ, –)" in lost
    assert not any("SUF 97" in place for place in lost)


def test_at_its_own_speedup():
    where = {"experiment": "imagenet-split", "loss": "triplet", "database": "val"}
    rows = [
        make_row("ours", suf=70.0, suf_1=70.0, pr_1=20.0, **where),
        make_row("vq-train", suf=60.0, suf_1=60.0, pr_1=25.0, **where),
        make_row("vq-train", variant="n_centroids=192", suf=80.0, suf_1=80.0, pr_1=19.0, **where),
    ]
    (line,) = at_own_speedup(rows, loss="triplet", database="val", method="ours", rival="vq-train")
    assert line == "- Ours k_s = 1, SUF 70.0, Pr@1: 20.00, not under VQ-train 19.00"


def test_remapping_is_compared_on_common_seeds():
    rows = [make_row("ours", suf=100.0, pr_1=60.0), make_row("ours", seed=1, suf=120.0, pr_1=70.0),
            make_row("ours-r", suf=101.0, pr_1=61.0)]  # fmt: skip
    (line,) = remapping(rows, ["npairs", "triplet"], "test")
    assert line.startswith("- npairs, k_s = 1, test, seed 0: ")
    assert "SUF 100.0, Pr@1 60.00" in line
    assert "SUF 101.0, Pr@1 61.00" in line
