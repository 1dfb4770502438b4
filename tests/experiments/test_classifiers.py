"""Prototypes and a softmax classifier in the paper's tables, on tiny features."""

import numpy as np
import pytest

from experiments import rivals
from experiments.base_network import Base
from experiments.cache import Cache
from experiments.jobs import Job
from experiments.presets import CLASSIFIERS, PRESETS, Recipe, make_recipe
from experiments.run import Experiment, FittedTable, job_settings
from experiments.verdicts import against_classifier
from hashcade.learn import Hasher

WITH_CLASSIFIERS = ("transfer", "scratch")
RECIPE = Recipe(
    width=8,
    features={},
    by_method={"softmax": {"hidden_size": 16}, "prototype": {"hidden_size": 16, "steps": 100}},
)


@pytest.fixture(scope="module")
def base():
    """Items in two views, of which the vectors of the base know little."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(6, 8))
    y = np.repeat(np.arange(6), 30)
    views, test = (
        (centres[y][:, None] + rng.normal(size=(len(y), n, 8))).astype(np.float32) for n in (2, 1)
    )
    vectors = test[:, 0, :2].copy()
    items = views[:, 0], test[:, 0]
    return Base(None, *items, views, *items, False, views[:, 0, :2].copy(), vectors, y, y,
                {"data": "tiny", "features": {}}, 0.0)  # fmt: skip


@pytest.fixture
def table(base, tmp_path, monkeypatch):
    monkeypatch.setattr(rivals, "REGULARIZATIONS", ((5e-4, 0.0),))
    monkeypatch.setattr(rivals, "MIXUPS", (0.0,))
    monkeypatch.setattr(rivals, "MIN_STEPS", 300)

    def fitted(method, loss="npairs"):
        job = Job(method=method, loss=loss, sparsity=1, seed=0, databases=("test",))
        return FittedTable(job, RECIPE, base, Cache(tmp_path), verbose=False)

    return fitted


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_classes_are_decided_on_the_items_and_ranked_by_the_vectors(table, base, method):
    fitted = table(method)
    result = fitted.evaluate("test", 1)
    assert result.precision[1] > 90
    assert result.speedup[1] == pytest.approx(6, abs=0.8)
    own = method == "prototype-learned"
    assert np.array_equal(fitted.encoded("test").vectors, base.test_vectors) != own
    assert fitted.encoded("test").ranked.shape[1] == 6  # where a query with too little goes on


def test_one_model_serves_both_losses(table):
    assert job_settings(Job(method="prototype", loss="triplet", sparsity=1, seed=3,
                            databases=("test",)), RECIPE) == {
        "method": "prototype", "random_state": 3, "hidden_size": 16, "steps": 100
    }  # fmt: skip
    first = table("prototype").hasher
    assert np.array_equal(first.prototypes_, table("prototype", "triplet").hasher.prototypes_)


def test_only_presets_with_settings_for_them_have_them(tmp_path):
    experiment = Experiment.load("cifar100", "smoke", data=None, work=tmp_path, verbose=False)
    assert not {job.method for job in experiment.jobs([0], None)} & set(CLASSIFIERS)
    for preset in PRESETS:
        recipe = make_recipe("cifar100", preset, "npairs", is_sample=False)
        settings = recipe.method_settings("prototype-learned", "npairs", {})
        assert set(settings) <= set(Hasher().get_params())
        assert bool(settings) == recipe.has("prototype-learned") == (preset in WITH_CLASSIFIERS)


def test_the_verdict_names_what_prototypes_are_below(make_row):
    rows = [
        make_row("prototype", pr_1=60.0, pr_16=59.0),
        make_row("softmax", pr_1=60.1, pr_16=59.0),
        make_row("ours+", pr_1=58.0, pr_16=58.0),
    ]
    assert against_classifier(rows, ["npairs"], ["test"]) == [
        "- Ours+, prototypes, npairs, k_s = 1, test, Pr@1: 60.00, **below** Softmax classifier "
        "60.10, not below Ours+ 58.00",
        "- Ours+, prototypes, npairs, k_s = 1, test, Pr@16: 59.00, not below Softmax classifier "
        "59.00, not below Ours+ 58.00",
    ]
