"""A build that was stopped, in whatever way, is resumed and ends with the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hashcade.batch import build_table
from hashcade.errors import CorruptIndexError, DataError, StorageError
from tests.batch.factories import digest, rows, write_shards

ROOT = Path(__file__).parents[2]  # where ``tests`` can be imported
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")


@pytest.fixture(scope="module")
def expected(tmp_path_factory, model, shards):
    path = tmp_path_factory.mktemp("expected") / "a"
    build_table(model, str(shards), path, payload="all", memory=1 << 24)
    return digest(path)


def settings_of(model, shards, output, **more):
    paths = {"model": str(model), "shards": str(shards), "output": str(output)}
    return {**paths, "payload": "all", "memory": 1 << 24, **more}


def run_killed(flush, settings):
    command = [sys.executable, "-m", "tests.batch.killed", str(flush), json.dumps(settings)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_killed_and_resumed(tmp_path, model, shards, expected):
    settings = settings_of(model, shards, tmp_path / "a")
    for flush in (12, 9, 22):
        assert run_killed(flush, settings).returncode == -signal.SIGKILL
        assert not (tmp_path / "a").exists()
        assert (tmp_path / "a.building" / "settings.json").exists()
    build_table(**settings)
    assert digest(tmp_path / "a") == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


@pytest.mark.slow
def test_killed_at_every_flush(tmp_path, model, shards, expected):
    n_flushes = int(run_killed(0, settings_of(model, shards, tmp_path / "all")).stdout)
    assert n_flushes > 30
    for flush in range(1, n_flushes + 1):
        output = tmp_path / str(flush)
        settings = settings_of(model, shards, output)
        assert run_killed(flush, settings).returncode == -signal.SIGKILL
        build_table(**settings)
        assert digest(output) == expected, flush


@pytest.mark.slow
def test_processes_killed_ten_times(tmp_path, model):
    write_shards(tmp_path / "shards", [5000] * 8)
    settings = settings_of(model, tmp_path / "shards", tmp_path / "expected")
    build_table(**settings)
    expected, rng, kills = digest(tmp_path / "expected"), np.random.default_rng(0), 0
    outputs = [tmp_path / "0"]

    def is_done(output):
        return output.exists() and not output.with_name(f"{output.name}.building").exists()

    while kills < 10:
        settings |= {"output": str(outputs[-1]), "workers": 2}
        command = [sys.executable, "-m", "tests.batch.killed", "0", json.dumps(settings)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            try:
                assert process.wait(rng.uniform(0.5, 4.0)) == 0
                assert is_done(outputs[-1])
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
        if is_done(outputs[-1]):  # it may be killed after that; another one follows
            outputs.append(tmp_path / str(len(outputs)))
    build_table(**{**settings, "output": str(outputs[-1])})
    for output in outputs:
        assert digest(output) == expected


def test_runs_are_not_made_again(tmp_path, model, shards, expected, monkeypatch):
    settings = settings_of(model, shards, tmp_path / "a")
    assert run_killed(45, settings).returncode == -signal.SIGKILL
    runs = tmp_path / "a.building" / "runs"
    before = {path: path.stat().st_ino for path in runs.iterdir() if path.name[0] != "."}
    assert len(before) >= 2
    from hashcade.batch import build

    seen = {}

    def spy(job, *arguments):
        seen.update({path: path.stat().st_ino for path in runs.iterdir()})
        return write_items(job, *arguments)

    write_items = build.write_items
    monkeypatch.setattr(build, "write_items", spy)
    build_table(**settings)
    assert before.items() <= seen.items()
    assert digest(tmp_path / "a") == expected


def check_the_same_command_ends_it(settings, folder, expected, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        build_table(**settings)
    monkeypatch.undo()
    assert (folder / "a.building").exists()
    build_table(**settings)
    assert sorted(path.name for path in folder.iterdir()) == ["a"]
    assert digest(folder / "a") == expected


def test_a_kill_after_the_table_took_its_place(tmp_path, model, shards, expected, monkeypatch):
    """Only the work directory is left: the same command removes it."""
    from hashcade.batch import build

    settings = settings_of(model, shards, tmp_path / "a")
    put = build.put_directory

    def put_and_stop(new, path):
        put(new, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "put_directory", put_and_stop)
    check_the_same_command_ends_it(settings, tmp_path, expected, monkeypatch)


def test_a_kill_while_the_work_directory_is_removed(tmp_path, model, shards, expected, monkeypatch):
    """The table is in its place, and a part of the work directory is gone."""
    from hashcade.batch import build

    settings = settings_of(model, shards, tmp_path / "a")
    remove = build.shutil.rmtree

    def remove_one_and_stop(path, **options):
        if path.name not in ("a.building", "merged"):
            return remove(path, **options)
        min(path.iterdir()).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(build.shutil, "rmtree", remove_one_and_stop)
    check_the_same_command_ends_it(settings, tmp_path, expected, monkeypatch)


def stopped(model, shards, output, monkeypatch):
    """A build of which all runs are there, and nothing else."""
    from hashcade.batch import build

    def stop(job, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "write_items", stop)
    with pytest.raises(KeyboardInterrupt):
        build_table(**settings_of(model, shards, output))
    monkeypatch.undo()
    return output.with_name(f"{output.name}.building")


@pytest.mark.parametrize(
    "name", ["index/segment-*.bin", "index/manifest.json", "rows.arrow", "run.json"]
)
def test_a_damaged_run(tmp_path, model, shards, expected, monkeypatch, name):
    work = stopped(model, shards, tmp_path / "a", monkeypatch)
    (run, *_) = sorted(path for path in (work / "runs").iterdir())
    (path,) = run.glob(name)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    settings = settings_of(model, shards, tmp_path / "a")
    with pytest.raises(CorruptIndexError, match="damaged") as raised:
        build_table(**settings)
    assert str(run) in raised.value.hint
    assert not (tmp_path / "a").exists()
    import shutil

    shutil.rmtree(run)
    build_table(**settings)
    assert digest(tmp_path / "a") == expected


def test_another_job_does_not_go_on(tmp_path, model, monkeypatch):
    shards = tmp_path / "shards"
    write_shards(shards, (1100, 1200))
    work = stopped(model, shards, tmp_path / "a", monkeypatch)
    settings = settings_of(model, shards, tmp_path / "a")
    with pytest.raises(StorageError, match="metric was euclidean, now cosine") as raised:
        build_table(**{**settings, "metric": "cosine"})
    assert str(work) in raised.value.hint
    pq.write_table(rows(1300, 5), shards / "001.parquet")
    with pytest.raises(StorageError, match=r"001\.parquet has changed since: "):
        build_table(**settings)
    (shards / "001.parquet").unlink()
    with pytest.raises(StorageError, match=r"001\.parquet is not the same"):
        build_table(**settings)
    (work / "settings.json").write_text("{")
    with pytest.raises(CorruptIndexError, match=r"settings\.json is damaged"):
        build_table(**settings)


def test_more_memory_later(tmp_path, model, shards, expected, monkeypatch):
    stopped(model, shards, tmp_path / "a", monkeypatch)
    build_table(**settings_of(model, shards, tmp_path / "a", memory=1 << 28))
    assert digest(tmp_path / "a") == expected


def test_errors_and_the_end_of_workers():
    """Errors keep their kind and hint; if a process is killed, the others end."""
    from hashcade.batch.workers import Task, worker_pool

    with worker_pool(2, None) as pool:
        with pytest.raises(DataError, match="a row is bad") as raised:
            list(pool.run([Task(_raise, ()), Task(os.getpid, ())]))
        assert raised.value.hint == "fix it"
        with pytest.raises(StorageError, match="a worker was killed") as raised:
            list(pool.run([Task(os.getpid, ()), Task(_kill_this_process, ())]))
    assert "run the same command again" in raised.value.hint
    assert os.environ.get("OPENBLAS_NUM_THREADS") == THREADS


THREADS = os.environ.get("OPENBLAS_NUM_THREADS")


def _raise():
    raise DataError("a row is bad", hint="fix it")


def _kill_this_process():
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_end_when_the_process_that_started_them_is_killed(tmp_path):
    source = """
import os, sys, time
from hashcade.batch.workers import Task, worker_pool
if __name__ == "__main__":
    with worker_pool(2, None) as pool:
        for _, pid in pool.run([Task(os.getpid, ())]):
            print(pid, flush=True)
        time.sleep(60)
"""
    (tmp_path / "main.py").write_text(source)
    command = [sys.executable, str(tmp_path / "main.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        worker = int(process.stdout.readline())
        process.kill()
    end = time.monotonic() + 30
    while _is_running(worker) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _is_running(worker)


def _is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
