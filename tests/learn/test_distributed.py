"""Training by two processes that torchrun started gives the model that one process gives."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from hashcade import Hasher
from hashcade.learn import stages
from tests.learn.factories import blobs

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
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
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
