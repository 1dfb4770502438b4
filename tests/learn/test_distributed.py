"""Training by two processes that torchrun started gives the model that one process gives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from torch import nn

from hashcade import ConfigError, Hasher
from hashcade.learn import stages
from hashcade.learn.distributed import Ranks
from tests.learn.factories import blobs

ROOT = Path(__file__).parents[2]
SETTINGS = {"random_state": 3, "verbose": False, "hidden_size": 24, "width": 6}
CASES = {
    "prototype": {"assignment": "prototype", "dropout": 0.2, "mixup": 0.3},
    "codebook": {"assignment": "codebook", "dropout": 0.2},
    "path": {"assignment": "path", "sparsity": 2},
    "triplet": {"assignment": "path", "loss": "triplet", "items_per_class": 3},
    "network": {"assignment": "codebook", "backbone": "mlp", "base_steps": 10},
}
# Runs on every rank: the models, and the codes of every step.
PROGRAM = """
import json, sys
from hashcade.learn.distributed import is_first_rank
from tests.learn.test_distributed import learn

for name, settings in json.loads(sys.argv[1]).items():
    learn(settings, f"{sys.argv[2]}/{name}" + ("" if is_first_rank() else ".other"))
"""


def learn(settings, path):
    """Fit, and write the weights and all codes that were solved."""
    codes, solve = [], stages.solve_cascade

    def recorded(*args, **kwargs):
        codes.append(solve(*args, **kwargs))
        return codes[-1]

    stages.solve_cascade = recorded
    try:
        hasher = Hasher(**settings).fit(*blobs(9, 11, noise=1.0))
    finally:
        stages.solve_cascade = solve
    arrays = {f"weights/{name}": value for name, value in hasher._weights.items()}
    arrays |= {f"codes/{step:05d}": code for step, code in enumerate(codes)}
    safetensors.numpy.save_file(arrays, path)
    return hasher


def torchrun(*arguments, ranks=2, **options):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--local-addr"]
    paths = os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH")) if path)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.run(
        [*command, "localhost", *map(str, arguments)], env=environment, capture_output=True,
        text=True, timeout=300, **options,
    )  # fmt: skip


def all_cases(directory, steps, ranks):
    """Every case, as learned by the first rank, by another one, and by this process."""
    plan = {"steps": steps, "joint_steps": steps // 2}
    cases = {name: {**SETTINGS, **plan, **changes} for name, changes in CASES.items()}
    program = directory / "program.py"
    program.write_text(PROGRAM)
    result = torchrun(program, json.dumps(cases), directory, ranks=ranks)
    assert result.returncode == 0, result.stderr
    for name, settings in cases.items():
        learn(settings, directory / f"{name}.one")
    load = safetensors.numpy.load_file
    ends = ("", ".other", ".one")
    return {name: [load(directory / f"{name}{end}") for end in ends] for name in cases}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return all_cases(tmp_path_factory.mktemp("quick"), steps=20, ranks=2)


@pytest.fixture(scope="module", params=[2, 3], ids="{}-ranks".format)
def thorough(request, tmp_path_factory):
    return all_cases(tmp_path_factory.mktemp("thorough"), steps=100, ranks=request.param)


def assert_same(first, other, one, n_codes):
    codes = [name for name in one if name.startswith("codes/")]
    assert len(codes) == n_codes
    for name in one:
        if name in codes:
            np.testing.assert_array_equal(first[name], one[name], err_msg=name)
        np.testing.assert_allclose(first[name], one[name], rtol=0, atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(first[name], other[name], err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_learn_what_one_process_learns(quick, case):
    assert_same(*quick[case], n_codes=0 if case == "prototype" else 20)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_they_still_agree_after_a_hundred_steps(thorough, case):
    assert_same(*thorough[case], n_codes=0 if case == "prototype" else 100)


FAULTS = """
import os, signal, sys
from hashcade import Hasher
from hashcade._progress import Progress
from tests.learn.factories import blobs
from tests.learn.test_distributed import SETTINGS

def fault(self, stage, step, *_):
    if os.environ["RANK"] == "1" and step == 13:
        if sys.argv[1] == "raise":
            raise ValueError("broken here")
        if sys.argv[1] == "interrupt":
            signal.raise_signal(signal.SIGINT)

Progress.update = fault
X, y = blobs(9, 11, noise=1.0)
if sys.argv[1] == "other" and os.environ["RANK"] == "1":
    y = y[::-1]
hasher = Hasher(**SETTINGS, steps=20, run_dir=sys.argv[2]).fit(X, y)
if os.environ["RANK"] == "0":
    hasher.save(sys.argv[2] + "/model")
"""


@pytest.fixture
def faulty(tmp_path):
    program = tmp_path / "faulty.py"
    program.write_text(FAULTS)
    return lambda fault, ranks=2: torchrun(program, fault, tmp_path / "run", ranks=ranks)


@pytest.mark.slow
def test_an_error_on_one_rank_ends_all(faulty):
    result = faulty("raise")

    assert result.returncode != 0
    assert "ValueError: broken here" in result.stderr
    assert "rank 0 lost contact with another rank, which ended" in result.stderr


@pytest.mark.slow
def test_ranks_with_other_data_are_refused(faulty):
    result = faulty("other")

    assert result.returncode != 0
    assert "items, labels and settings must be the same on all 2 ranks" in result.stderr


@pytest.mark.slow
def test_a_run_that_one_rank_interrupted_is_resumed_by_all(faulty, tmp_path):
    result = faulty("interrupt")
    assert result.stderr.count("KeyboardInterrupt: stopped after step 13 of 20") == 2
    assert [path.name for path in (tmp_path / "run").glob("check*")] == [
        "checkpoint-prototype-00000013"
    ]

    assert faulty("none", ranks=3).returncode == 0

    one = Hasher(**SETTINGS, steps=20).fit(*blobs(9, 11, noise=1.0))
    resumed = Hasher.load(tmp_path / "run" / "model")
    for name, value in one._weights.items():
        np.testing.assert_allclose(resumed._weights[name], value, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_command_line(tmp_path):
    X, y = blobs(9, 11, noise=1.0)
    np.savez(tmp_path / "data.npz", X=X, y=y)
    command = ["train", tmp_path / "data.npz", "--width", "6", "--steps", "20", "--budget", "1h"]
    command += ["--run-dir", tmp_path / "run"]

    result = torchrun("-m", "hashcade", *command, "-o", tmp_path / "model")

    assert result.returncode == 0, result.stderr
    assert result.stdout.count("validation") == 1
    assert result.stderr.count("prototype: ") == 1
    one = Hasher(width=6, steps=20, verbose=False).fit(X, y)
    model = Hasher.load(tmp_path / "model")
    assert model.validation_ == one.validation_
    for name, value in one._weights.items():
        np.testing.assert_allclose(model._weights[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("n", "size"), [(10, 3), (2, 4), (7, 1)])
def test_shares_are_the_batch_in_order(n, size):
    shares = [range(n)[Ranks(rank, size).share(n)] for rank in range(size)]
    assert [row for share in shares for row in share] == list(range(n))


def test_layers_that_look_at_the_whole_batch_are_refused():
    for layer in (nn.BatchNorm1d(4), nn.Dropout(0.5)):
        Ranks(0, 2).check_layers(layer.eval())
        with pytest.raises(ConfigError, match=f"has {type(layer).__name__}"):
            Ranks(0, 2).check_layers(nn.Sequential(layer).train())
        Ranks().check_layers(layer)
