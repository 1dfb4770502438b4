"""Files and directories appear whole or not at all, and there is one writer at a time."""

import errno
import os
import subprocess
import sys

import pytest

from hashcade import _io
from hashcade._io import new_directory, new_file, replace_file, take_writer_lock, writer_lock
from hashcade.errors import IndexLockedError, StorageError


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "deep" / "file.json"
    replace_file(path, "old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["file.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    replace_file(path, "old")
    with pytest.raises(ZeroDivisionError), new_file(path) as temporary:
        temporary.write_text(f"half{1 / 0}")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two renames"])
def test_a_directory_takes_the_place_of_another(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(_io.sys, "platform", "other")
    path = tmp_path / "table"
    for content in ("old", "new"):
        with new_directory(path) as temporary:
            (temporary / "file").write_text(content)
    assert (path / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["table"]


def test_a_failed_directory_leaves_the_old_one(tmp_path):
    path = tmp_path / "table"
    with new_directory(path) as temporary:
        (temporary / "file").write_text("old")
    with pytest.raises(ZeroDivisionError), new_directory(path) as temporary:
        (temporary / "file").write_text(f"half{1 / 0}")
    assert (path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["table"]


@pytest.mark.skipif(sys.platform != "linux", reason="names are exchanged on Linux alone")
def test_there_is_never_a_moment_with_nothing_at_the_path(tmp_path):
    """A watcher in another process looks at the path while it is replaced again and again."""
    path = tmp_path / "table"
    with new_directory(path):
        pass
    watcher = subprocess.Popen(
        [sys.executable, "-c",
         "import os, sys\nprint('ready', flush=True)\nmissed = 0\n"
         "while not os.path.exists(sys.argv[2]):\n    missed += not os.path.isdir(sys.argv[1])\n"
         "print(missed)",
         str(path), str(tmp_path / "done")],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watcher.stdout.readline() == "ready\n"
    for _ in range(200):
        with new_directory(path):
            pass
    (tmp_path / "done").touch()
    assert watcher.communicate(timeout=30)[0] == "0\n"


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with new_directory(tmp_path / "link") as temporary:
        (temporary / "file").touch()
    assert (tmp_path / "link").is_symlink()
    assert os.listdir(tmp_path / "real") == ["file"]


@pytest.mark.parametrize(
    ("code", "hint"),
    [(errno.ENOSPC, "free some space"), (errno.EACCES, "choose a path that you may write to")],
)
def test_what_the_system_objects_to_has_a_hint(tmp_path, monkeypatch, code, hint):
    def refuse(handle):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(_io.os, "fsync", refuse)
    with pytest.raises(StorageError, match="cannot write") as caught:
        replace_file(tmp_path / "file", "content")
    assert hint in caught.value.hint
    assert os.listdir(tmp_path) == []


def test_one_writer_at_a_time(tmp_path):
    with writer_lock(tmp_path):
        with pytest.raises(IndexLockedError, match="held by another writer") as caught:
            take_writer_lock(tmp_path)
        assert caught.value.hint
    os.close(take_writer_lock(tmp_path))
