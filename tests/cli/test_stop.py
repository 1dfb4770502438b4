"""Ctrl-C and SIGTERM: the exit code says so, and nothing half-written is left."""

import re
import signal
import subprocess
import time
import urllib.request

import numpy as np
import pytest
from cli_factories import COMMAND, clean_environment, make_embeddings


@pytest.mark.parametrize(
    ("verb", "number", "code"),
    [
        pytest.param("fit", signal.SIGINT, 130, id="ctrl-c"),
        pytest.param("train", signal.SIGTERM, 143, id="term", marks=pytest.mark.slow),
    ],
)
def test_training_that_is_stopped_leaves_nothing(tmp_path, verb, number, code):
    X, y = make_embeddings()
    np.savez(tmp_path / "data.npz", X=X, y=y)
    process = subprocess.Popen(
        [COMMAND, verb, "data.npz", "-o", "result", "--steps", "1000000", "--width", "4"],
        cwd=tmp_path, env=clean_environment(tmp_path), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = process.stderr.readline()
        while line and not line.startswith("prototype: "):  # training has begun
            line = process.stderr.readline()
        time.sleep(0.5)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == code, err
    assert out == ""
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == ["data.npz"]
    assert not list(tmp_path.glob(".result*"))
    if number == signal.SIGINT:
        assert err.splitlines()[-1] == "hashcade: stopped; no partial result was left behind"


def test_the_service_answers_and_stops_when_told(tmp_path, sample):
    process = subprocess.Popen(
        [COMMAND, "serve", sample.table, "--port", "0"],
        env=clean_environment(tmp_path), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = process.stderr.readline()
        address = re.search(r"serving 300 items on (http://127\.0\.0\.1:\d+)", line)[1]
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"{address}/health", timeout=5) as response:
                    assert response.status == 200
                break
            except OSError:
                time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode in (0, 143), err
    assert "Traceback" not in err


@pytest.mark.parametrize("kind", ["table", "model", "file"])
def test_a_result_appears_at_the_end_or_not_at_all(tmp_path, kind):
    from hashcade.cli.outputs import new_result

    def write(stop):
        with new_result(tmp_path / "result", kind, force=False) as new:
            (new if kind == "file" else new / "part").write_text("content")
            assert not (tmp_path / "result").exists()
            if stop:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(stop=True)
    assert list(tmp_path.iterdir()) == []
    write(stop=False)
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


def test_a_reader_that_leaves_early_is_no_error_of_ours(tmp_path, sample):
    done = subprocess.run(
        f"'{COMMAND}' inspect '{sample.table}' --json | head -c 9;"
        f"'{COMMAND}' inspect '{sample.table}' | true",
        shell=True, env=clean_environment(tmp_path), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == '{\n "kind"'
    assert "Traceback" not in done.stderr
