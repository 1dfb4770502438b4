"""HAProxy with affinity to buckets, in front of services that only read."""

import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from hashcade.serve import Client
from tests.serve.factories import DIM, make_table, process

CONFIG = Path(__file__).parents[2] / "deploy" / "haproxy-affinity.cfg"
pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not on PATH")


def start(folder, services):
    """HAProxy with the file of deploy/, at a port of its own and in front of these services."""
    # Neither one that Linux gives to clients nor one of the Redis servers of other tests.
    port = 23_000 + int(np.random.default_rng().integers(6_000))
    text = CONFIG.read_text().replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    for old, service in zip(("127.0.0.1:8001", "127.0.0.1:8002"), services, strict=True):
        text = text.replace(old, service.url.removeprefix("http://"))
    (folder / "haproxy.cfg").write_text(text)
    proxy = subprocess.Popen(["haproxy", "-q", "-db", "-f", str(folder / "haproxy.cfg")])
    url = f"http://127.0.0.1:{port}"
    for _ in range(1000):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return proxy, url
        except OSError:
            time.sleep(0.05)
    proxy.kill()
    raise RuntimeError("HAProxy does not answer")


def queries_of(service):
    with urllib.request.urlopen(f"{service.url}/metrics", timeout=60) as answer:
        return float(re.search(rb"^hashcade_queries_total (\S+)", answer.read(), re.MULTILINE)[1])


@pytest.mark.alone
@pytest.mark.parametrize("seconds", [1.5, pytest.param(10, marks=pytest.mark.slow)])
def test_buckets_have_a_home_and_a_killed_service_is_not_noticed(tmp_path, seconds):
    place = make_table(tmp_path / "table")
    with (
        process(place, log=tmp_path / "one", read_only=True) as one,
        process(place, log=tmp_path / "two", read_only=True) as two,
    ):
        proxy, url = start(tmp_path, [one, two])
        try:
            vector = np.zeros((1, DIM), np.float32)
            homes = set()
            with Client(url) as client:
                for bucket in range(12):
                    before = queries_of(one)
                    for _ in range(4):
                        client.search(vector, bucket_ids=[[bucket]])
                    homes.add(queries_of(one) - before)
            assert homes == {0.0, 4.0}  # all of a bucket at one service, and both are used
            answers, errors = under_load(url, vector, lambda: one.stop(signal.SIGKILL), seconds)
            assert errors == []
            assert answers > 100
        finally:
            proxy.kill()
            proxy.wait()


def under_load(url, vector, fault, seconds):
    """Answers and errors of four clients while something happens."""
    answers, errors, ended = [], [], threading.Event()

    def ask(seed):
        random = np.random.default_rng(seed)
        with Client(url) as client:
            while not ended.is_set():
                try:
                    client.search(vector, bucket_ids=[[int(random.integers(12))]])
                    answers.append(1)
                except Exception as error:  # whatever it is, it is counted
                    errors.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    fault()
    time.sleep(seconds)
    ended.set()
    for thread in threads:
        thread.join()
    return len(answers), errors
