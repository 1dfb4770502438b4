"""Settings that all tests share."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: the first example of a test may compile a kernel. The quick examples are the same in
# every run, so that a failure belongs to the change that made it; the thorough ones look for new.
settings.register_profile("quick", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_configure():
    """Remove cached kernels of packages that changed since: numba looks at one file alone."""
    package = Path(find_spec("hashcade").origin).parent
    for name in ("codes", "index"):
        newest = max(path.stat().st_mtime for path in (package / name).glob("*.py"))
        for cached in (package / name / "__pycache__").glob("*.nbi"):
            if cached.stat().st_mtime < newest:
                cached.unlink(missing_ok=True)


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
