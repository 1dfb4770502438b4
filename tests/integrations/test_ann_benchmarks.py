"""The module for ann-benchmarks does what that calls: constructor, fit, settings, queries."""

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "benchmarks" / "ann_benchmarks"


@pytest.fixture
def algorithm(monkeypatch):
    """The class, loaded as a module of ann-benchmarks; its base class is an empty one."""
    base = types.ModuleType("ann_benchmarks.algorithms.base.module")
    base.BaseANN = type("BaseANN", (), {})
    for name in ("ann_benchmarks", "ann_benchmarks.algorithms", "ann_benchmarks.algorithms.base"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    spec = importlib.util.spec_from_file_location(
        "ann_benchmarks.algorithms.hashcade.module", FOLDER / "module.py"
    )
    package = types.ModuleType("ann_benchmarks.algorithms.hashcade")
    package.__path__ = [str(FOLDER)]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configuration():
    (entry,) = yaml.safe_load((FOLDER / "config.yml").read_text())["float"]["any"]
    return entry


@pytest.mark.parametrize("metric", ["euclidean", "angular"])
def test_more_probes_find_more_and_all_find_everything(algorithm, metric, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(10, 8))[rng.integers(0, 10, 400)] + 0.3 * rng.normal(size=(400, 8))
    found = getattr(algorithm, configuration()["constructor"])(metric, 4, 2, 10, 1)
    found._settings["steps"] = 30  # the real number takes longer than a test may
    found.fit(X)
    points = X / np.linalg.norm(X, axis=1, keepdims=True) if metric == "angular" else X
    gaps = np.linalg.norm(points[:20, None] - points[None], axis=2)
    exact = np.argsort(gaps, axis=1)[:, :10]
    recall = []
    for n_probe in (1, 16):
        found.set_query_arguments(n_probe)
        found.batch_query(X[:20], 10)
        results = found.get_batch_results()
        assert found.query(X[0], 10).tolist() == results[0].tolist()
        pairs = zip(results, exact, strict=True)
        recall.append(np.mean([len(set(one) & set(two)) / 10 for one, two in pairs]))
    assert recall[0] <= recall[1] == 1
    assert "n_probe=16" in str(found)


def test_the_configuration_fits_the_constructor(algorithm):
    import inspect

    constructor = getattr(algorithm, configuration()["constructor"])
    names = list(inspect.signature(constructor).parameters)
    for group in configuration()["run_groups"].values():
        assert len(configuration()["base_args"]) + len(group["args"]) == len(names)
        assert len(group["query_args"]) == 1
    with pytest.raises(NotImplementedError):
        constructor("hamming", 4, 2, 10, 1)
