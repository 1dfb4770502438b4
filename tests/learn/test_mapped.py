"""Training from memory-mapped arrays: the same model, and never all of it in memory."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from hashcade import DataError, Hasher
from hashcade.data import stratified_sample
from hashcade.learn import training_data
from hashcade.learn.training_data import TrainingData
from tests.learn.factories import QUICK, blobs, images


def mapped(path, X):
    np.save(path, X)
    return np.load(path, mmap_mode="r")


def assert_equal_weights(one, two):
    assert one._weights.keys() == two._weights.keys()
    for name, value in one._weights.items():
        np.testing.assert_array_equal(two._weights[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("assignment", "dtype"),
    [
        ("prototype", np.float32), ("prototype", np.float16), ("prototype", np.int8),
        ("codebook", np.float32), ("path", np.float16),
    ],
)  # fmt: skip
def test_the_same_model_as_from_memory(tmp_path, assignment, dtype):
    X, y = blobs(scale=9.0)
    X = X.astype(dtype)
    settings = QUICK | {"assignment": assignment, "run_dir": tmp_path / "run"}

    from_file = Hasher(**settings).fit(mapped(tmp_path / "X.npy", X), y)

    assert_equal_weights(Hasher(**QUICK, assignment=assignment).fit(X, y), from_file)


def test_many_prototypes_start_at_the_means_of_their_classes(tmp_path):
    X, y = blobs(n_classes=600, per_class=4)
    settings = QUICK | {"width": 30, "validation_fraction": 0.0}

    from_file = Hasher(**settings).fit(mapped(tmp_path / "X.npy", X), y)

    assert_equal_weights(Hasher(**settings).fit(X, y), from_file)


def test_views_and_images(tmp_path):
    X, y = blobs()
    views = np.stack([X, X + 0.1], axis=1)
    photos, kinds = images()
    network = {**QUICK, "backbone": "stride", "base_steps": 2, "steps": 2}
    for settings, items, labels in ((QUICK, views, y), (network, photos, kinds)):
        from_file = Hasher(**settings).fit(mapped(tmp_path / "X.npy", items), labels)
        assert_equal_weights(Hasher(**settings).fit(items, labels), from_file)


def test_mean_and_scale_of_large_data_are_those_of_a_part(tmp_path, monkeypatch):
    monkeypatch.setattr(training_data, "MOST_IN_MEMORY", 50)
    X, y = blobs()
    rows, none = np.arange(len(X)), np.arange(0)

    data = TrainingData(mapped(tmp_path / "X.npy", X), y, rows, none)
    measured = data.normalization_items().numpy()

    assert measured.shape == (50, 8)
    assert len(np.unique(y[(X[:, None] == measured).all(axis=2).any(axis=1)])) == 6
    assert len(TrainingData(torch.from_numpy(X), y, rows, none).normalization_items()) == len(X)


def test_what_is_not_finite_is_named_when_it_is_read(tmp_path):
    X, y = blobs()
    X[37] = np.nan
    with pytest.raises(DataError, match="X has NaN or infinite values in row 37"):
        Hasher(**QUICK).fit(mapped(tmp_path / "X.npy", X), y)


@pytest.mark.parametrize("from_file", [True, False])
def test_a_sample_is_learned_from_alone(tmp_path, from_file):
    X, y = blobs()
    rows = stratified_sample(y, 40)
    items = mapped(tmp_path / "X.npy", X) if from_file else X

    hasher = Hasher(**QUICK, sample=40).fit(items, y)

    assert_equal_weights(Hasher(**QUICK).fit(X[rows], y[rows]), hasher)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    """800,000 × 128 numbers are 400 MB; the fit may take a fifth of them."""
    program = """
        import sys
        import numpy as np
        from hashcade import Hasher

        def anonymous():
            with open("/proc/self/status") as file:
                return next(int(line.split()[1]) >> 10 for line in file if "RssAnon" in line)

        X = np.lib.format.open_memmap(sys.argv[1], mode="w+", dtype=np.float32, shape=(800000, 128))
        y = np.arange(len(X)) % 50
        X[:1000] = np.random.default_rng(0).normal(size=(1000, 128))  # the rest is a hole: zeros
        X.flush()
        settings = {"width": 8, "steps": 20, "joint_steps": 20, "verbose": False}
        Hasher(**settings).fit(np.asarray(X[:1000]), y[:1000])  # what it takes in any case
        X, before = np.load(sys.argv[1], mmap_mode="r"), anonymous()
        import threading, time
        most, done = before, threading.Event()
        def watch():
            global most
            while not done.wait(0.01):
                most = max(most, anonymous())
        watcher = threading.Thread(target=watch)
        watcher.start()
        Hasher(**settings).fit(X, y)
        done.set()
        watcher.join()
        print(most - before)
    """
    if sys.platform != "linux":
        pytest.skip("/proc/self/status says how much memory is in use")
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "X.npy")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    print(f"{result.stdout.strip()} MiB more")
    assert int(result.stdout) < 80
