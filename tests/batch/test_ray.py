"""The same tasks on Ray: a worker that is killed costs time, and nothing else."""

import os
import signal
import threading
import time

import pytest

from hashcade.batch import build_table
from tests.batch.factories import digest, write_shards

ray = pytest.importorskip("ray", reason="ray is not installed: make test-cluster installs it")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def two_cores(tmp_path_factory):
    """A cluster of this machine, without a dashboard, a report of use, or files in the home."""
    home = tmp_path_factory.mktemp("home")
    settings = {"HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=f"/tmp/ray-{os.getpid()}",
    )
    yield
    ray.shutdown()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def workers():
    """Processes of Ray that run a task of a build."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if file.read().startswith(b"ray::make_run"):
                    found.append(int(name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found in /proc")
def test_the_same_bytes_though_a_worker_was_killed(tmp_path, model, two_cores):
    write_shards(tmp_path / "shards", [20_000] * 6)
    killed = []

    def kill_one():
        end = time.monotonic() + 60
        while not killed and time.monotonic() < end:
            for worker in workers()[:1]:
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)
            time.sleep(0.002)

    thread = threading.Thread(target=kill_one)
    thread.start()
    settings = {"payload": "all", "memory": 1 << 25}
    build_table(model, str(tmp_path / "shards"), tmp_path / "a", ray="auto", **settings)
    thread.join()
    assert len(killed) == 1
    build_table(model, str(tmp_path / "shards"), tmp_path / "b", **settings)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
