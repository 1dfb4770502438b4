"""A budget: as many steps as can be done in this time, and the same ones after a break."""

import json
import time

import numpy as np
import pytest

from hashcade import ConfigError, Hasher
from hashcade.learn import trainer
from tests.learn.factories import blobs

BUDGET = 2.0


def steps(hasher):
    return {stage.name: stage.steps for stage in hasher.config_.stages}


def test_training_ends_in_time_and_the_rate_falls_to_zero(tmp_path):
    X, y = blobs()
    settings = {"width": 4, "steps": 1_000_000, "verbose": False, "run_dir": tmp_path}
    Hasher(width=4, steps=2, verbose=False).fit(X, y)  # what first calls pay
    start = time.perf_counter()
    hasher = Hasher(**settings, budget=BUDGET).fit(X, y)
    taken = time.perf_counter() - start
    assert taken < 2 * BUDGET  # other programs may have the cores
    assert 10 < steps(hasher)["prototype"] < 1_000_000
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    last = [record for record in log if record["stage"] == "prototype"][-1]
    if last["step"] == steps(hasher)["prototype"]:  # no other program had the cores
        assert last["learning_rate"] < 0.01 * hasher.config_.stages[0].learning_rate
    again = Hasher(**settings, budget=BUDGET).fit(X, y)  # whatever the speed is now
    assert steps(again) == steps(hasher)
    np.testing.assert_array_equal(again.scores(X), hasher.scores(X))
    with pytest.raises(ConfigError, match="holds a run with another budget or other settings"):
        Hasher(**settings, budget=2 * BUDGET).fit(X, y)


def test_a_budget_that_is_enough_changes_nothing():
    X, y = blobs()
    plain = Hasher(width=4, steps=20, verbose=False).fit(X, y)
    limited = Hasher(width=4, steps=20, verbose=False, budget=600).fit(X, y)
    assert steps(limited) == steps(plain)
    np.testing.assert_array_equal(limited.scores(X), plain.scores(X))


def test_steps_follow_the_measured_speed(monkeypatch):
    """Ten seconds of steps and two of validations fit into a budget of seven by a part."""
    cost = trainer._Cost(steps=1000, fixed=1.0, step_seconds=5.0)
    monkeypatch.setattr(trainer.Trainer, "_costs", lambda self, *more: [cost, cost])
    X, y = blobs()
    hasher = Hasher(width=4, steps=1000, joint_steps=1000, verbose=False, budget=7.0).fit(X, y)
    expected = 1000 * (0.85 * 7 - 2) / 10
    assert steps(hasher) == pytest.approx({"prototype": expected, "codes": expected}, abs=5)


def test_a_machine_that_turns_slow_does_not_exceed_the_budget(monkeypatch, tmp_path):
    step = trainer.Trainer._gradient_step

    def slow(self, *arguments):
        time.sleep(0.02 * measured)
        return step(self, *arguments)

    costs, measured = trainer.Trainer._costs, False

    def measure(self, *arguments):
        nonlocal measured
        made, measured = costs(self, *arguments), True
        return made

    monkeypatch.setattr(trainer.Trainer, "_gradient_step", slow)
    monkeypatch.setattr(trainer.Trainer, "_costs", measure)
    settings = {"width": 4, "steps": 1_000_000, "verbose": False, "run_dir": tmp_path}
    start = time.perf_counter()
    Hasher(**settings, budget=1.0).fit(*blobs())
    assert time.perf_counter() - start < 5.0  # a million steps, or all that were planned: more
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {record["stage"] for record in log} == {"prototype", "codes"}


def test_what_is_said_before_training_changes_nothing(capsys):
    X, y = blobs()
    quiet, loud = (Hasher(width=4, steps=20, verbose=v).fit(X, y) for v in (False, True))
    assert "training: prototype 20 × " in capsys.readouterr().err
    np.testing.assert_array_equal(quiet.scores(X), loud.scores(X))


def test_budget_and_tune_exclude_each_other():
    with pytest.raises(ValueError, match="budget=5 and tune=True exclude each other"):
        Hasher(budget=5, tune=True).fit(*blobs())
    with pytest.raises(ValueError, match="budget=-1 must be finite and >= 0"):
        Hasher(budget=-1).fit(*blobs())
