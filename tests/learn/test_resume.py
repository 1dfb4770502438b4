"""A resumed run gives bit for bit what it would have given without the break."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

from hashcade import ConfigError, Hasher
from hashcade._progress import Progress
from hashcade.learn import config, prototypes
from hashcade.learn.files import Run, StageState
from tests.learn.factories import blobs


def images():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2, 3, 4], 8)
    X = rng.integers(0, 255, size=(40, 8, 8, 3), dtype=np.uint8)
    return X, y


def network():
    # Everything that has a state or draws numbers: normalisation, dropout.
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.Dropout(0.3),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    )


def new_hasher(**settings):
    return Hasher(
        **{"width": 4, "backbone": network(), "embedding_size": 4, "assignment": "codebook"}
        | {"steps": 25, "base_steps": 25, "joint_steps": 25, "verbose": False, **settings}
    )


def state(hasher):
    return {name: value.clone() for name, value in hasher._model().state_dict().items()}


def assert_bit_for_bit(one, two):
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


@pytest.fixture(scope="module")
def uninterrupted():
    return state(new_hasher().fit(*images()))


@pytest.fixture(scope="module")
def uninterrupted_prototypes():
    return state(new_hasher(assignment="prototype").fit(*images()))


def interrupt_at(monkeypatch, stage, step):
    """Ctrl-C arrives in the middle of a run, as the signal it is."""

    def show(self, name, at, *_):
        if (name, at) == (stage, step):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Progress, "update", show)


@pytest.fixture
def ctrl_c_interrupts():
    """Python's own handler: a process in the background of a script starts without it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("stage", "step"),
    [("base", 1), ("base", 14), ("hash", 1), ("hash", 23), ("joint", 1), ("joint", 23)],
)
@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_resuming_after_ctrl_c_equals_no_break(monkeypatch, tmp_path, uninterrupted, stage, step):
    interrupt_at(monkeypatch, stage, step)
    with pytest.raises(KeyboardInterrupt, match=f"stopped after step {step} of 25"):
        new_hasher(run_dir=tmp_path).fit(*images())
    assert [p.name for p in tmp_path.glob("checkpoint-*")] == [f"checkpoint-{stage}-{step:08d}"]
    monkeypatch.undo()
    hasher = new_hasher(run_dir=tmp_path).fit(*images())
    assert_bit_for_bit(state(hasher), uninterrupted)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # given back


FAST = {
    "backbone": "fast", "warmup_steps": 12, "base_steps": 12, "steps": 12, "assignment": "path",
}  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted_fast():
    return state(new_hasher(**FAST).fit(*images()))


@pytest.mark.parametrize(
    ("stage", "step"),
    [
        pytest.param("warmup", 5, marks=pytest.mark.slow),
        pytest.param("base", 1, marks=pytest.mark.slow),
        ("hash", 3),
    ],
)
@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_a_fast_network_is_resumed_in_every_stage(
    monkeypatch, tmp_path, uninterrupted_fast, stage, step
):
    interrupt_at(monkeypatch, stage, step)
    with pytest.raises(KeyboardInterrupt):
        new_hasher(**FAST, run_dir=tmp_path).fit(*images())
    monkeypatch.undo()
    resumed = state(new_hasher(**FAST, run_dir=tmp_path).fit(*images()))
    assert_bit_for_bit(resumed, uninterrupted_fast)


@pytest.mark.parametrize(
    ("stage", "step"),
    [("base", 14), ("prototype", 1), ("prototype", 23), ("codes", 1), ("codes", 23)],
)
@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_prototypes_are_resumed_in_either_stage(
    monkeypatch, tmp_path, uninterrupted_prototypes, stage, step
):
    settings = {"assignment": "prototype", "run_dir": tmp_path}
    interrupt_at(monkeypatch, stage, step)
    with pytest.raises(KeyboardInterrupt, match=f"stopped after step {step} of 25"):
        new_hasher(**settings).fit(*images())
    assert [p.name for p in tmp_path.glob("checkpoint-*")] == [f"checkpoint-{stage}-{step:08d}"]
    monkeypatch.undo()
    assert_bit_for_bit(state(new_hasher(**settings).fit(*images())), uninterrupted_prototypes)


@pytest.mark.parametrize(("stage", "step"), [("prototype", 1), ("prototype", 23), ("codes", 14)])
@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_prototypes_of_many_classes_are_resumed(monkeypatch, tmp_path, stage, step):
    monkeypatch.setattr(prototypes, "_RANDOM_CLASSES", 7)  # of 30 classes: batches draw some
    X, y = blobs(n_classes=30, per_class=10)
    settings = {"width": 8, "steps": 25, "joint_steps": 25, "hidden_size": 16, "verbose": False}
    monkeypatch.setattr(config, "_BATCH", 10)
    whole = state(Hasher(**settings).fit(X, y))
    with monkeypatch.context() as patch:
        interrupt_at(patch, stage, step)
        with pytest.raises(KeyboardInterrupt):
            Hasher(**settings, run_dir=tmp_path).fit(X, y)
    checkpoint = next(tmp_path.glob("checkpoint-*"))
    stored = safetensors.numpy.load_file(checkpoint / "model.safetensors")
    if stage == "prototype":  # rows count their own steps: those not drawn yet have none
        steps = next(value for name, value in stored.items() if name.endswith("/steps"))
        assert steps.max() <= step
        assert (steps.min() == 0) == (step == 1)
    assert_bit_for_bit(state(Hasher(**settings, run_dir=tmp_path).fit(X, y)), whole)


def test_a_finished_run_is_there_at_once_and_its_log_has_each_step_once(
    monkeypatch, tmp_path, uninterrupted
):
    interrupt_at(monkeypatch, "hash", 7)
    with pytest.raises(KeyboardInterrupt):
        new_hasher(run_dir=tmp_path).fit(*images())
    with (tmp_path / "log.jsonl").open("a") as log:  # as if it was killed while writing
        log.write(json.dumps({"stage": "hash", "step": 9}) + '\n{"stage": "ha')
    monkeypatch.undo()
    first = new_hasher(run_dir=tmp_path).fit(*images())
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    expected = [3, 6, 9, 12, 15, 18, 21, 24, 25]
    assert [(r["stage"], r["step"]) for r in records] == [
        *(("base", step) for step in expected),
        *(("hash", step) for step in expected),
        *(("joint", step) for step in expected),
    ]
    assert {"loss", "precision_at_1", "speedup_factor", "bucket_nmi", "items_per_second",
            "solver_share", "seconds", "learning_rate"} <= records[-1].keys()  # fmt: skip
    before = (tmp_path / "log.jsonl").read_text()
    again = new_hasher(run_dir=tmp_path).fit(*images())
    assert (tmp_path / "log.jsonl").read_text() == before  # nothing was trained
    assert_bit_for_bit(state(again), uninterrupted)
    assert again.validation_ == first.validation_


def test_a_run_with_other_settings_or_data_is_refused(tmp_path):
    X, y = images()
    new_hasher(run_dir=tmp_path).fit(X, y)
    with pytest.raises(ConfigError, match=r"holds a run with random_state=0, .* random_state=1"):
        new_hasher(run_dir=tmp_path, random_state=1).fit(X, y)
    with pytest.raises(ConfigError, match="holds a run with stages="):
        new_hasher(run_dir=tmp_path, learning_rate=1e-4).fit(X, y)
    with pytest.raises(ConfigError, match="holds a run with data="):
        new_hasher(run_dir=tmp_path).fit(255 - X, y)
    one_pixel = X.copy()
    one_pixel[-1, -1, -1, -1] ^= 1
    with pytest.raises(ConfigError, match="holds a run with data="):
        new_hasher(run_dir=tmp_path).fit(one_pixel, y)


def test_a_run_with_other_first_weights_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 6)).astype(np.float32), np.arange(40) % 4

    def fit(seed):
        torch.manual_seed(seed)
        own = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU())
        settings = {"width": 4, "steps": 2, "base_steps": 2, "verbose": False}
        return Hasher(backbone=own, run_dir=tmp_path, **settings).fit(X, y)

    first = fit(0)
    np.testing.assert_array_equal(fit(0).embed(X), first.embed(X))
    with pytest.raises(ConfigError, match="holds a run with backbone_weights="):
        fit(1)


# ---------------------------------------------------------------------------------- kill -9

TRAIN = """
import sys, numpy as np, torch
torch.set_num_threads(1)
from hashcade import Hasher
import hashcade.learn.trainer as trainer
trainer._SAVE_SECONDS = 0.0  # a checkpoint after every step: many moments to be killed in
rng = np.random.default_rng(0)
y = np.repeat(np.arange(8), 12)
X = rng.normal(size=(8, 16))[y] + rng.normal(size=(96, 16))
print("ready", flush=True)
steps = int(sys.argv[3])
hasher = Hasher(width=4, steps=steps, embedding_size=8, base_steps=steps, hidden_size=16,
                assignment="codebook", joint_steps=steps, run_dir=sys.argv[1] or None).fit(X, y)
hasher.save(sys.argv[2])
"""


def start(run_dir, model, steps):
    command = [sys.executable, "-c", TRAIN, str(run_dir), str(model), str(steps)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def kill_until_done(tmp_path, delays, n_steps):
    run_dir, n_kills, steps = tmp_path / "run", 0, []
    for delay in delays:
        process = start(run_dir, tmp_path / "model", n_steps)
        time.sleep(delay)
        if process.poll() is None:
            process.kill()
            n_kills += 1
        process.communicate()
        if (tmp_path / "model").exists():
            break
        steps += sorted(p.name for p in run_dir.glob("checkpoint-*"))[-1:]
    process = start(run_dir, tmp_path / "model", n_steps)
    process.communicate(timeout=120)
    assert process.returncode == 0
    process = start("", tmp_path / "whole", n_steps)
    process.communicate(timeout=120)
    assert process.returncode == 0
    one, two = (tmp_path / name / "model.safetensors" for name in ("model", "whole"))
    assert one.read_bytes() == two.read_bytes()
    return n_kills, steps


@pytest.mark.slow
def test_a_killed_run_is_resumed(tmp_path):
    n_kills, _ = kill_until_done(tmp_path, [0.4], 50)
    assert n_kills == 1


@pytest.mark.slow
def test_a_killed_run_is_resumed_wherever_it_was(tmp_path):
    delays = np.random.default_rng(int(time.time())).uniform(0.2, 2.0, size=12)
    n_kills, steps = kill_until_done(tmp_path, delays, 100)
    assert n_kills >= 2
    assert steps == sorted(steps)


class Dead(BaseException):
    """Raised in place of a change to the file system, and of every later one."""


def die_at(monkeypatch, n):
    """Let the n-th change of the file system and all after it not happen, clean-up included."""
    left = n

    def dying(function):
        def wrapped(*args, **kwargs):
            nonlocal left
            left -= 1
            if left <= 0:
                raise Dead
            return function(*args, **kwargs)

        return wrapped

    for name in ("fsync", "rename", "mkdir", "rmdir", "unlink"):
        monkeypatch.setattr(os, name, dying(getattr(os, name)))


def test_a_checkpoint_is_old_or_new_wherever_the_process_dies(monkeypatch, tmp_path):
    steps, died = [], True
    while died:
        n = len(steps) + 1
        run = Run(tmp_path / str(n), ["base", "hash"], {})
        run.save(StageState("base", 1), {"weight": torch.full((3,), 1.0)})
        with monkeypatch.context() as patch:
            die_at(patch, n)
            try:
                run.save(StageState("base", 2), {"weight": torch.full((3,), 2.0)})
                died = False
            except Dead:
                pass
        state, tensors = Run(tmp_path / str(n), ["base", "hash"], {}).restore()
        assert tensors["weight"].tolist() == [state.step] * 3
        steps.append(state.step)
    assert len(steps) > 6  # mkdir, two files, their directory, rename, the parent, clean-up
    assert steps == sorted(steps)  # the old one up to the rename, the new one after it
    assert steps[0] == 1
    assert steps[-2:] == [2, 2]


def test_the_newest_checkpoint_is_the_one_of_the_later_stage(tmp_path):
    run = Run(tmp_path, ["base", "hash"], {})
    run.save(StageState("base", 900), {"weight": torch.zeros(1)})
    run.save(StageState("hash", 5), {"weight": torch.ones(1)})
    state, tensors = run.restore()
    assert (state.stage, state.step, tensors["weight"].item()) == ("hash", 5, 1.0)
    assert len(list(tmp_path.iterdir())) == 1
