"""The cache of intermediate results, and the estimate of the time left."""

import threading
import time

import numpy as np
import pytest

from experiments.cache import Cache
from experiments.progress import Progress
from hashcade import Hasher
from hashcade.errors import StorageError


def test_arrays_are_computed_once_for_the_same_settings(tmp_path):
    cache = Cache(tmp_path)
    calls = []

    def compute():
        calls.append(1)
        return np.arange(3.0)

    for settings in ({"a": 1}, {"a": 1}, {"a": 2}):
        np.testing.assert_array_equal(cache.array("x", settings, compute), [0, 1, 2])
    assert len(calls) == 2
    damaged = next((tmp_path / "arrays").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:50])
    with pytest.raises(StorageError, match="cannot read"):
        [cache.array("x", settings, compute) for settings in ({"a": 1}, {"a": 2})]


def test_an_interrupted_training_resumes_and_its_checkpoints_go_away(tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 12)
    X = rng.normal(size=(4, 6))[y] + 0.1 * rng.normal(size=(48, 6))
    cache = Cache(tmp_path)
    attempts = []

    def fit(run_dir):
        attempts.append(run_dir)
        if len(attempts) == 1:
            raise KeyboardInterrupt
        return Hasher(width=4, steps=5, run_dir=run_dir).fit(X, y)

    with pytest.raises(KeyboardInterrupt):
        cache.hasher("ours", {"steps": 5}, fit)
    first = cache.hasher("ours", {"steps": 5}, fit)
    again = cache.hasher("ours", {"steps": 5}, fit)
    assert len(attempts) == 2
    assert attempts[0] == attempts[1]
    assert not attempts[1].exists()
    np.testing.assert_array_equal(first.scores(X), again.scores(X))


def test_of_two_processes_one_trains_and_the_other_waits(tmp_path):
    X, y = np.eye(8, dtype=np.float32).repeat(5, axis=0), np.arange(8).repeat(5)
    begun, attempts, results = threading.Event(), [], []

    def fit(run_dir):
        attempts.append(run_dir)
        begun.set()
        time.sleep(0.3)  # long enough for the other to come
        return Hasher(width=4, steps=5, run_dir=run_dir).fit(X, y)

    def fetch():
        results.append(Cache(tmp_path).hasher("ours", {"steps": 5}, fit))

    both = [threading.Thread(target=fetch) for _ in range(2)]
    both[0].start()
    assert begun.wait(10)
    both[1].start()
    for one in both:
        one.join(60)
    assert len(attempts) == 1
    np.testing.assert_array_equal(results[0].scores(X), results[1].scores(X))


def test_the_time_of_an_interrupted_training_counts_too(tmp_path, monkeypatch):
    cache, clock = Cache(tmp_path), 0.0
    monkeypatch.setattr("time.process_time", lambda: clock)
    X, y = np.eye(8, dtype=np.float32).repeat(5, axis=0), np.arange(8).repeat(5)
    assert cache.training_seconds("ours", {"steps": 5}) == 0.0

    def broken(run_dir):
        nonlocal clock
        clock += 20.0
        raise KeyboardInterrupt

    def whole(run_dir):
        nonlocal clock
        clock += 30.0
        return Hasher(width=4, steps=5, run_dir=run_dir).fit(X, y)

    with pytest.raises(KeyboardInterrupt):
        cache.hasher("ours", {"steps": 5}, broken)
    cache.hasher("ours", {"steps": 5}, whole)
    assert cache.training_seconds("ours", {"steps": 5}) == 50.0


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
