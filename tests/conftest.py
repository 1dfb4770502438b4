"""Settings that all tests share."""

import os
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from hypothesis import settings

# No deadline: the first example of a test may compile a kernel. The quick examples are the same in
# every run, so that a failure belongs to the change that made it; the thorough ones look for new.
settings.register_profile("quick", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session", autouse=True)
def own_feature_cache(tmp_path_factory):
    """Features of photos are kept here, not among the user's."""
    os.environ["HASHCADE_CACHE"] = str(tmp_path_factory.mktemp("features"))


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread():
    """Data are small: two threads would wait for each other longer than they work."""
    if find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)


@pytest.fixture
def command(capsys):
    """Run a command in this process: exit code, stdout and stderr."""
    from hashcade.cli.app import make_app, run

    def call(*arguments):
        capsys.readouterr()
        code = run(make_app(), [str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return call
