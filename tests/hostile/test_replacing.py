"""Writing over something, and being killed: the old or the new is there, and nothing is left."""

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from hashcade import Hasher, HashTable, _io
from hashcade._io import new_directory, new_file, replace_file
from tests.hostile.child import in_child
from tests.hostile.test_readers import MODEL
from tests.store.factories import make_table

CALLS = ("rename", "replace", "fsync", "mkdir", "unlink", "rmdir", "open")


def killed_at(function, call, nth):
    """Run a function in a process that is killed at the nth call of a function of ``os``."""

    def run():
        real, calls = getattr(os, call), [0]

        def counted(*arguments, **more):
            calls[0] += 1
            if calls[0] == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **more)

        setattr(os, call, counted)
        function()

    return in_child(run, seconds=30)


def content(path):
    return (path / "file").read_text() if path.is_dir() else None


def write(path, text):
    with new_directory(path) as new:
        (new / "file").write_text(text)


@pytest.mark.promise("M2", "SIGKILL at every step of writing over a directory")
@pytest.mark.parametrize("exchange", [True, False])
def test_killed_at_any_step_of_replacing_a_directory(tmp_path, monkeypatch, exchange, cases):
    if not exchange:  # as on a system that cannot: two renames, and a moment between them
        monkeypatch.setattr(_io, "_CANNOT_EXCHANGE", range(200))
        monkeypatch.setattr(_io, "_RENAME_EXCHANGE", 1 << 20)  # unknown to any system
    gaps = 0
    for call in CALLS:
        for nth in range(1, 50):
            path = tmp_path / f"{call}{nth}" / "table"
            write(path, "old")
            outcome, _ = killed_at(lambda path=path: write(path, "new"), call, nth)
            gaps += not path.exists()
            _io.restore_directory(path)  # what opening does
            assert content(path) in ("old", "new"), (call, nth)
            write(path, "last")
            assert content(path) == "last"
            assert os.listdir(path.parent) == ["table"], (call, nth)
            cases.add()
            if outcome != "killed by":
                break
    assert (gaps > 0) == (not exchange)


@pytest.mark.promise("M2", "SIGKILL at every step of writing over a file")
def test_killed_at_any_step_of_replacing_a_file(tmp_path, cases):
    for call in CALLS:
        for nth in range(1, 50):
            path = tmp_path / f"{call}{nth}" / "codes.npz"
            replace_file(path, "old")
            outcome, _ = killed_at(lambda path=path: replace_file(path, "new"), call, nth)
            assert path.read_text() in ("old", "new")
            replace_file(path, "last")
            assert os.listdir(path.parent) == ["codes.npz"]
            cases.add()
            if outcome != "killed by":
                break


@pytest.mark.promise("M2", "what a living process is writing is not taken for a leftover")
def test_what_somebody_is_writing_stays(tmp_path, cases):
    path = tmp_path / "table"
    with new_directory(path) as mine:
        (mine / "file").write_text("mine")
        outcome = in_child(write, path, "other's")
        assert outcome[0] == "done"
        assert (mine / "file").read_text() == "mine"
    assert content(path) == "mine"
    with new_file(tmp_path / "a.npz") as mine:
        mine.write_text("mine")
        assert in_child(replace_file, tmp_path / "a.npz", "other's")[0] == "done"
    assert (tmp_path / "a.npz").read_text() == "mine"
    for name in (".table.new-7x", ".table.new-", ".other.new-7", ".table.newer"):  # not ours
        (tmp_path / name).touch()
    write(path, "last")
    assert len(os.listdir(tmp_path)) == 6
    cases.add(3)


@pytest.mark.promise("M2", "a killed run of the command line leaves an old table as it was")
@pytest.mark.parametrize("what", ["table", "model"])
def test_a_table_or_model_that_was_set_aside_is_found_again(tmp_path, what, cases):
    """On a system that cannot exchange names, after a kill between the two renames."""
    path = tmp_path / what
    if what == "table":
        make_table(path)
    else:
        shutil.copytree(MODEL, path)
    os.rename(path, tmp_path / f".{what}.old-4194304")
    if what == "table":
        with HashTable.open(path) as table:
            assert len(table) == 200
    else:
        assert Hasher.load(path).classes_ is not None
    assert os.listdir(tmp_path) == [what]
    cases.add()


# -- files of others in a table ----


@pytest.mark.promise("L", "files of others in a table: it starts, saves, and leaves them alone")
def test_files_of_others_are_left_alone(tmp_path, cases):
    path = make_table(tmp_path / "table")
    others = ["segment-x", "segment-x.bin", "removed-mine.bin", "manifest-old.tmp", "notes.log",
              "segment-" + "0" * 32 + ".bin.bak"]  # fmt: skip
    for folder in (path, path / "index"):
        for name in others:
            (folder / name).write_text("mine")
        (folder / "segment-directory").mkdir()
    (path / "index" / ("segment-" + "0" * 32 + ".bin")).mkdir()  # named as one of ours
    left = "segment-" + "f" * 32 + ".bin"
    (path / "index" / left).write_text("left by a killed writer")
    from hashcade.index import Encoded

    with HashTable.open(path) as table:
        encoded = Encoded(np.zeros((1, 8), np.float32), np.zeros((1, 1), int), None, by_path=False)
        table.add(encoded, labels=[0])
        table.save(path)
    with HashTable.load(path) as table:
        table.remove([0])
        table.save(path)
        assert len(table) == 200
    for folder in (path, path / "index"):
        for name in others:
            assert (folder / name).read_text() == "mine"
        assert (folder / "segment-directory").is_dir()
    assert not (path / "index" / left).exists()
    cases.add(2 * len(others) + 3)


@pytest.mark.promise("L", "files of others in a table are named by verify")
def test_verify_names_files_of_others(tmp_path, cases):
    path = make_table(tmp_path / "table")
    (path / "index" / "segment-x").mkdir()
    (path / "notes.log").write_text("mine")
    script = "import sys\nfrom hashcade.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", script, "verify", str(path)], capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "notes.log" in done.stderr
    assert "segment-x" in done.stderr
    cases.add()
