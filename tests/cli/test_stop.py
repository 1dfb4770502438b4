"""Ctrl-C and SIGTERM: the exit code says so, and nothing half-written is left."""

import re
import signal
import subprocess
import time
import urllib.request

import numpy as np
import pytest
from installed_command import COMMAND, clean_environment
from worlds_of_cli import make_embeddings


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "term"]
)
def test_training_that_is_stopped_leaves_nothing(tmp_path, number, code):
    X, y = make_embeddings()
    np.savez(tmp_path / "data.npz", X=X, y=y)
    process = subprocess.Popen(
        [COMMAND, "train", "data.npz", "-o", "model", "--steps", "1000000", "--width", "4"],
        cwd=tmp_path, env=clean_environment(tmp_path), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = process.stderr.readline()
        while line and not line.startswith("hash: "):  # training has begun
            line = process.stderr.readline()
        time.sleep(0.5)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, err
    assert out == ""
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == ["data.npz"]
    assert not list(tmp_path.glob(".model*"))
    if number == signal.SIGINT:
        assert err.splitlines()[-1] == "hashcade: stopped; nothing half-written is left"


def test_the_service_answers_and_stops_when_told(tmp_path, made):
    process = subprocess.Popen(
        [COMMAND, "serve", made.index, "--port", "0"],
        env=clean_environment(tmp_path), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = process.stderr.readline()
        address = re.search(r"serving 300 items on (http://127\.0\.0\.1:\d+)", line)[1]
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
                    assert answer.status == 200
                break
            except OSError:
                time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode in (0, 143), err
    assert "Traceback" not in err


def test_a_result_is_put_in_place_at_the_end_or_not_at_all(tmp_path):
    from hashcade.cli._directory import new_directory, new_file

    def stopped_in_a_directory():
        with new_directory(tmp_path / "model", "model", force=False) as made:
            (made / "half").write_text("half")
            raise KeyboardInterrupt

    def stopped_in_a_file():
        with new_file(tmp_path / "codes.npz", force=False) as made:
            made.write_text("half")
            raise KeyboardInterrupt

    for work in (stopped_in_a_directory, stopped_in_a_file):
        with pytest.raises(KeyboardInterrupt):
            work()
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_early_is_no_error_of_ours(tmp_path, made):
    done = subprocess.run(
        f"'{COMMAND}' inspect '{made.index}' --json | head -c 9;"
        f"'{COMMAND}' inspect '{made.index}' | true",
        shell=True, env=clean_environment(tmp_path), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == '{\n "kind"'
    assert "Traceback" not in done.stderr
