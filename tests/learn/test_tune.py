"""Choosing settings: what is tried, what is chosen, and why."""

import functools
import signal

import numpy as np
import pytest

from hashcade import Hasher
from hashcade._progress import Progress
from hashcade.learn.config import resolve
from hashcade.learn.tune import search_settings, shortened

QUICK = {"steps": 24, "hidden_size": 8, "verbose": False}


def blobs(n_classes=6, per_class=20, size=8, seed=0):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(n_classes), per_class)
    X = 2 * rng.normal(size=(n_classes, size))[y] + rng.normal(size=(len(y), size))
    return X.astype(np.float32), y


def trials(metrics, n_trials=9, **given):
    """Run the choice with invented metrics: (precision, speed-up) by changes, else (50, 100)."""
    settings = Hasher(**{"assignment": "codebook", **given}).get_params()
    config = resolve(settings, n_classes=100, n_items=5000, item_shape=(8,))
    seen = []

    def trial(changes):
        seen.append(dict(changes))
        for known, (precision, speedup) in metrics:
            if known.items() <= changes.items():
                return {"precision_at_1": precision, "speedup_factor": speedup}
        return {"precision_at_1": 50.0, "speedup_factor": 100.0}

    changes, table = search_settings(
        settings, config, 100, trial, n_trials=n_trials, progress=Progress(False)
    )
    assert [row["changes"] for row in table] == seen
    assert [row["changes"] for row in table if row["chosen"]] == [changes]
    return changes, seen


# --------------------------------------------------------------------------------- the choice


def test_defaults_come_first_and_stay_if_nothing_is_better():
    changes, seen = trials([])
    assert changes == {}
    assert seen[0] == {}
    assert seen[1:4] == [
        {"width": 64, "depth": 2},
        {"width": 16, "depth": 2},
        {"width": 32, "depth": 3},
    ]
    assert [set(changes) for changes in seen[4:]] == [
        {"collision_penalty"}, {"collision_penalty"}, {"regularization"}, {"regularization"},
        {"sibling_penalty"},
    ]  # fmt: skip
    assert seen[4:6] == [{"collision_penalty": 0.5}, {"collision_penalty": pytest.approx(0.005)}]


def test_with_prototypes_other_tables_and_penalties_are_tried():
    changes, seen = trials([], assignment="prototype")
    assert changes == {}
    assert seen[:3] == [{}, {"width": 32, "depth": 2}, {"width": 8, "depth": 3}]
    assert [set(changes) for changes in seen[3:]] == [
        {"collision_penalty"}, {"collision_penalty"}, {"sibling_penalty"},
    ]  # fmt: skip  # 8 ** 2 buckets are too few, and nothing is regularized


def test_what_helps_adds_up():
    changes, seen = trials(
        [
            ({"width": 64, "collision_penalty": 0.5}, (53.0, 100.0)),
            ({"width": 64}, (52.0, 100.0)),
            ({"collision_penalty": 0.5}, (40.0, 100.0)),
        ]
    )
    assert changes == {"width": 64, "depth": 2, "collision_penalty": 0.5}
    assert all(row["width"] == 64 for row in seen[4:])  # later groups start from the best


def test_precision_that_is_paid_for_with_speed_is_not_chosen():
    assert trials([({"width": 16}, (60.0, 89.0))])[0] == {}
    assert trials([({"width": 16}, (60.0, 91.0))])[0] == {"width": 16, "depth": 2}
    assert trials([({"width": 64}, (50.0, 120.0))])[0] == {"width": 64, "depth": 2}  # faster


def test_settings_that_were_given_are_left_alone():
    _, seen = trials([], width=32, collision_penalty=0.1)
    assert [set(changes) for changes in seen] == [
        set(), {"regularization"}, {"regularization"}, {"sibling_penalty"},
    ]  # fmt: skip
    _, seen = trials([], width=32, loss="triplet")
    assert not any("regularization" in changes for changes in seen)  # triplet has none
    _, seen = trials([], depth=1)
    assert {"width": 64, "depth": 1} not in seen  # 100 classes need 100 buckets
    assert len(trials([], n_trials=3)[1]) == 3


def test_a_trial_is_a_quarter_of_the_training():
    def steps(**settings):
        settings = Hasher(**settings).get_params()
        config = resolve(settings, n_classes=6, n_items=100, item_shape=(8,))
        return [stage.steps for stage in shortened(config).stages]

    assert steps(steps=4000, embedding_size=4, assignment="codebook") == [250, 1000, 1000]
    assert steps(steps=300, assignment="path") == [200]
    assert steps(steps=50, joint_steps=70, assignment="codebook") == [50, 70]
    assert steps(steps=4000, joint_steps=2000) == [1000, 500]


# ------------------------------------------------------------------------------ the estimator


def test_the_table_says_what_was_tried_and_the_model_has_what_was_chosen(capsys, tmp_path):
    X, y = blobs()
    hasher = Hasher(**{**QUICK, "verbose": True}, tune=4).fit(X, y)
    assert len(hasher.tuned_) == 4
    (chosen,) = [row["changes"] for row in hasher.tuned_ if row["chosen"]]
    assert hasher.shape_.width == chosen.get("width", 4)
    assert hasher.shape_.depth == chosen.get("depth", 2)
    assert hasher.get_params()["width"] is None  # settings stay as they were given
    said = capsys.readouterr().err
    assert "tune 1: defaults: Pr@1" in said
    assert "tune: chose" in said
    hasher.save(tmp_path / "model")
    assert Hasher.load(tmp_path / "model").tuned_ == hasher.tuned_
    again = Hasher(**QUICK, tune=4).fit(X, y)
    assert again.tuned_ == hasher.tuned_
    np.testing.assert_array_equal(again.scores(X), hasher.scores(X))
    assert not hasattr(hasher.set_params(tune=False).fit(X, y), "tuned_")


@pytest.mark.parametrize("assignment", ["codebook", "prototype"])
def test_tuning_equals_fitting_with_what_it_chose(assignment):
    X, y = blobs()
    settings = {**QUICK, "embedding_size": 4, "base_steps": 20, "assignment": assignment}
    tuned = Hasher(**settings, tune=True).fit(X, y)
    (chosen,) = [row["changes"] for row in tuned.tuned_ if row["chosen"]]
    by_hand = Hasher(**{**settings, **chosen}).fit(X, y)
    np.testing.assert_array_equal(tuned.scores(X), by_hand.scores(X))
    np.testing.assert_array_equal(tuned.embed(X), by_hand.embed(X))
    assert tuned.validation_ == by_hand.validation_


@functools.cache
def uninterrupted(assignment):
    settings = {**QUICK, "embedding_size": 4, "base_steps": 20, "tune": 4, "assignment": assignment}
    return Hasher(**settings).fit(*blobs()), settings


@pytest.mark.parametrize(
    ("assignment", "stop_at"),
    [
        pytest.param("codebook", 5, marks=pytest.mark.slow),
        ("codebook", 30),
        pytest.param("codebook", 60, marks=pytest.mark.slow),
        pytest.param("prototype", 30, marks=pytest.mark.slow),
        ("prototype", 100),
    ],
)  # in the base, in trials, in the whole
def test_an_interrupted_choice_is_resumed(monkeypatch, tmp_path, assignment, stop_at):
    X, y = blobs()
    whole, settings = uninterrupted(assignment)
    steps = 0

    def show(*_):
        nonlocal steps
        steps += 1
        if steps == stop_at:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", show)
        with pytest.raises(KeyboardInterrupt):
            Hasher(**settings, run_dir=tmp_path).fit(X, y)
    hasher = Hasher(**settings, run_dir=tmp_path).fit(X, y)
    assert hasher.tuned_ == whole.tuned_
    np.testing.assert_array_equal(hasher.scores(X), whole.scores(X))


def test_bad_values_are_refused():
    X, y = blobs()
    with pytest.raises(ValueError, match="tune=0 must be >= 1"):
        Hasher(**QUICK, tune=0).fit(X, y)
    with pytest.raises(ValueError, match="tune=True needs a validation set, which is empty"):
        Hasher(**QUICK, tune=True, validation_fraction=0.0).fit(X, y)
