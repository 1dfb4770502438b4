"""H6: the conditions of a container without one: user nobody, nothing writable, no home."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import hashcade
from hashcade import HashTable
from hashcade._kernels import cache_folder
from hashcade.serve import Client
from hashcade.warmup import warmup
from tests.hostile.attackers import POST
from tests.hostile.services import Attacked, Outcome
from tests.hostile.test_cancel import cpu_seconds
from tests.serve.factories import DIM, Process, command, make_table
from tests.test_stale_kernels import PACKAGE

NOBODY = 65534
SMALL = "hashcade_copied"  # by its name it belongs to us
MEMORY = 1 << 30  # bytes of data
pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="needs root and unshare, to become user nobody and to mount things read-only",
)


@pytest.fixture
def folder():
    """A folder that every user may look into, as those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="hashcade-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def as_nobody(folder, *command):
    """A command of user nobody, with ``folder`` mounted read-only but for ``folder/data``."""
    limits = f"prlimit --nofile=256 --data={MEMORY}"
    user = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --no-new-privs"
    script = f"""set -e
mount --bind {folder} {folder}
mount --bind {folder}/data {folder}/data
mount -o remount,bind,ro {folder}
cd /
exec {limits} {user} "$@" """
    return ["unshare", "--mount", "sh", "-c", script, "sh", *command]


def environment(folder, **more):
    """Nothing but what finds the package: no HOME, no cache."""
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder / "site"), **more}


def install(folder):
    """A copy of the package that belongs to root, without anything compiled."""
    source, target = Path(hashcade.__file__).parent, folder / "site" / "hashcade"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.nb[ic]", "__pycache__"))
    (folder / "data").mkdir()
    os.chown(folder / "data", NOBODY, NOBODY)
    return target


def install_small(folder):
    """A package with one kernel, which is compiled in a second."""
    install(folder)
    package = folder / "site" / SMALL
    package.mkdir()
    for name, text in PACKAGE.items():
        (package / name).write_text(text.replace("{factor}", "2").replace("copied", SMALL))


def run_kernel(command, env):
    code = f"from {SMALL}.kernels import run; import hashcade.index; print(run(5))"
    command = [*command, sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "11\n"
    return done.stderr


@pytest.mark.promise("H6", "nothing can be cached: read-only package, no home")
@pytest.mark.parametrize("cache", [None, "/proc/nothing", "site", ""])
def test_without_a_place_for_kernels_there_is_a_warning(folder, cache, cases):
    install_small(folder)
    more = {} if cache is None else {"NUMBA_CACHE_DIR": cache and str(folder / cache)}
    told = run_kernel(as_nobody(folder), environment(folder, **more))
    assert told.count("\n") == 1
    assert "compiling its kernels, at every start: nothing can be cached" in told
    assert "hashcade warmup" in told
    cases.add()


@pytest.mark.promise("H6", "kernels that were compiled for another user are used")
def test_what_was_compiled_beforehand_is_used(folder, cases):
    install_small(folder)
    env = environment(folder)
    assert "once per installation" in run_kernel([], env)  # by root, as when an image is built
    for file in (folder / "site").rglob("*.py"):
        os.utime(file, (0, 0))  # layers of an image have times of their own
    assert run_kernel(as_nobody(folder), env) == ""
    given = environment(folder, NUMBA_CACHE_DIR=str(folder / "data"))
    assert run_kernel(as_nobody(folder), given) == ""
    cases.add(2)


@pytest.mark.promise("H6", "a cached kernel is damaged, or cannot be read")
@pytest.mark.parametrize("damage", ["short", "other", "mode"])
def test_a_damaged_cache_is_not_in_the_way(folder, damage, cases):
    install_small(folder)
    run_kernel([], environment(folder))
    for file in (folder / "site" / SMALL / "__pycache__").glob("*.nb[ic]"):
        if damage == "mode":
            file.chmod(0)
        else:
            file.write_bytes(file.read_bytes()[:20] if damage == "short" else b"\x80\x04\x95")
    assert "compiling its kernels" in run_kernel(as_nobody(folder), environment(folder))
    cases.add()


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def install_compiled(folder):
    """The package as in an image: with the kernels that `hashcade warmup` compiles."""
    package = install(folder)
    warmup()
    for name in ("codes", "index", "learn", "store"):
        (package / name / "__pycache__").mkdir()
        for file in cache_folder(Path(hashcade.__file__).parent / name).glob("*.nb[ic]"):
            shutil.copy(file, package / name / "__pycache__")


def table_of_nobody(folder):
    place = make_table(folder / "data" / "table")
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    return place


@pytest.mark.alone
@pytest.mark.promise("H6", "the service as user nobody, read-only, no home, 256 files, 1 GB")
def test_the_service_starts_and_answers_in_under_5_seconds(folder, cases):
    install_compiled(folder)
    place = table_of_nobody(folder)
    port, start = free_port(), time.perf_counter()
    command = [sys.executable, "-m", "hashcade", "serve", str(place), "--port", str(port)]
    env = environment(folder, OMP_NUM_THREADS="1")
    log = folder / "log"
    with log.open("wb") as out:
        service = subprocess.Popen(as_nobody(folder, *command), env=env, stdout=out, stderr=out)
    try:
        item = {"vectors": [[1.0] * DIM], "bucket_ids": [[3]], "labels": [0]}
        added = ask(port, "/v1/items", item, service, log)
        assert time.perf_counter() - start < 5 or os.getloadavg()[0] > 2
        assert cpu_seconds(service.pid) < 5
        del item["labels"]
        assert ask(port, "/v1/search", item, service, log)["ids"][0][0] == added["ids"][0]
    finally:
        service.send_signal(signal.SIGTERM)
        assert service.wait(20) == 0, log.read_text()
    assert "compiling" not in log.read_text()
    assert added["ids"][0] in HashTable.load(place)
    cases.add()


def ask(port, path, body, service, log):
    for _ in range(1200):
        assert service.poll() is None, log.read_text()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, text
            return json.loads(text)
        except OSError:
            time.sleep(0.05)
        finally:
            connection.close()
    raise AssertionError(log.read_text())


# -- the soak --------------------------------------------------------------------------------------

SILENT = {"n": 150, "seconds": 4.0}
ATTACKS = [
    ("hold", {**SILENT, "start": ""}),
    ("hold", {**SILENT, "start": "GET /health HT"}),
    ("hold", {**SILENT, "start": POST.decode() + "Content-Length: 9000000\r\n\r\n{"}),
    ("drip", {"n": 20, "seconds": 4.0, "start": "GET /health HTTP/1.1\r\nHost: localhost\r\nX: "}),
    (
        "pipeline",
        {"n_bytes": 1 << 20, "request": "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"},
    ),
    ("head", {"kind": "headers", "n_bytes": 64 << 20}),
    ("head", {"kind": "small chunks", "n_bytes": 64 << 20}),
    ("bombs", {"kinds": ["short numbers", "deep", "payload of text"], "n": 4, "size": 1 << 20}),
]


def check_soak(folder, seconds, p99, cases):
    """Slow, idle, flooding and honest clients at once; acknowledged items are there afterwards."""
    install_compiled(folder)
    place = table_of_nobody(folder)

    class Contained(Process):
        environment = environment(folder)

        @staticmethod
        def command(table, **settings):
            return as_nobody(folder, *command(table, **settings))

    settings = {"fold_seconds": 0.3, "idle_seconds": 2.0, "deadline": 3.0, "send_seconds": 2.0}
    attacked = Attacked(place, folder / "log", Contained, **settings)
    descriptors = Path(f"/proc/{attacked.pid}/fd")
    added, end = [], time.monotonic() + seconds
    try:
        before = len(list(descriptors.iterdir()))
        attacked.reset_peak()
        with attacked.honest_client() as honest:
            while time.monotonic() < end:
                attacks = [attacked.attack(name, **options) for name, options in ATTACKS]
                while any(attack.poll() is None for attack in attacks):
                    with Client(attacked.service.url) as client:
                        added += client.add([[0.5] * DIM], bucket_ids=[[1]], labels=[0])
                    time.sleep(0.02)
                results = [json.loads(attack.communicate()[0]) for attack in attacks]
                cases.add(sum(options.get("n", 1) for _, options in ATTACKS))
        Outcome(attacked, "soak", {}, honest, results).check(bodies=True, p99=p99)
        _wait_until(lambda: len(list(descriptors.iterdir())) <= before + 4)  # none is lost
        metrics = attacked.get("/metrics")[1]
        assert "hashcade_requests_active 0.0" in metrics
        assert "hashcade_body_bytes 0.0" in metrics
        assert "hashcade_index_saves 0.0" not in metrics
    finally:
        stopped = attacked.stop()
    log = attacked.service.log.read_text()
    assert stopped == 0, log
    assert "Too many open files" not in log
    assert "could not be saved" not in log
    assert "compiling" not in log
    table = HashTable.load(place)
    assert added
    assert all(item in table for item in added)


def _wait_until(holds, seconds=10.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


SOAK = pytest.mark.promise(
    "H6", "slow, idle, flooding and honest clients at once, as nobody, 256 files, 1 GB"
)


@SOAK
@pytest.mark.alone
def test_a_soak_as_in_a_container(folder, cases):
    check_soak(folder, 1.0, 1.0, cases)


@SOAK
@pytest.mark.alone
@pytest.mark.slow
def test_two_minutes_of_soak_as_in_a_container(folder, cases):
    check_soak(folder, 120.0, 0.5, cases)
