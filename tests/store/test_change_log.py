"""The change log keeps what was acknowledged, and nothing that was damaged."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashcade import CorruptIndexError, IndexLockedError, StorageError
from hashcade.store import change_log
from hashcade.store.change_log import Add, ChangeLog, Remove, from_bytes, read_files, to_bytes

BASE = "a" * 32


def add(*ids, dim=3, labels=False):
    ids = np.array(ids, dtype=np.int64)
    vectors = np.arange(len(ids) * dim).reshape(-1, dim) + ids[:, None]
    return Add(ids, ids[:, None] % 4, vectors.astype(np.float32), ids + 7 if labels else None)


def same(change, other):
    if type(change) is not type(other) or not np.array_equal(change.ids, other.ids):
        return False
    if isinstance(change, Remove):
        return True
    pairs = [(change.bucket_ids, other.bucket_ids), (change.vectors, other.vectors)]
    if (change.labels is None) != (other.labels is None):
        return False
    if change.labels is not None:
        pairs.append((change.labels, other.labels))
    return all(np.array_equal(a, b) for a, b in pairs)


changes = st.one_of(
    st.builds(
        add, st.integers(0, 2**62), st.integers(0, 2**62),
        dim=st.integers(1, 5), labels=st.booleans(),
    ),
    st.builds(
        lambda ids: Remove(np.array(ids, dtype=np.int64)),
        st.lists(st.integers(0, 2**63 - 1), max_size=5),
    ),
)  # fmt: skip


@given(st.lists(changes, max_size=6))
def test_changes_come_back_as_they_were(written):
    read = list(from_bytes(to_bytes(written)))
    assert len(read) == len(written)
    assert all(same(a, b) for a, b in zip(read, written, strict=True))


def filled(folder, *groups):
    log = ChangeLog(folder)
    log.begin(BASE)
    for group in groups:
        log.append(group)
    log.close()
    return next((folder / "changes").glob("*.log"))


def replayed(folder, generation=BASE):
    log = ChangeLog(folder)
    try:
        return log.replay(generation)
    finally:
        log.close()


def test_everything_that_was_appended_is_replayed_in_order(tmp_path):
    groups = [[add(1, 2)], [Remove(np.array([1])), add(5, labels=True)], [add(9)]]
    filled(tmp_path, *groups)
    flat = [change for group in groups for change in group]
    assert all(same(a, b) for a, b in zip(replayed(tmp_path), flat, strict=True))


def test_a_torn_end_is_cut_off_wherever_it_tears(tmp_path):
    file = filled(tmp_path, [add(1)], [add(2), add(3)])
    whole = file.read_bytes()
    one = len(whole) - read_files(tmp_path / "changes")[0].sound_bytes
    assert one == 0
    two_frames = [len(change.ids) for change in replayed(tmp_path)]
    assert two_frames == [1, 1, 1]
    first_end = change_log._HEAD.size + change_log._FRAME.size + len(to_bytes([add(1)]))
    for end in range(first_end, len(whole)):
        file.write_bytes(whole[:end])
        assert [change.ids.tolist() for change in replayed(tmp_path)] == [[1]]
        assert file.stat().st_size == first_end
    # Pages of the last frame that never reached the disk may read as zeros.
    for hole in range(first_end, len(whole) - 4, 7):
        file.write_bytes(whole[:hole] + bytes(len(whole) - hole))
        assert [change.ids.tolist() for change in replayed(tmp_path)] == [[1]]


def test_damage_before_the_last_frame_is_an_error_wherever_it_is(tmp_path):
    file = filled(tmp_path, [add(1)], [add(2), add(3)], [add(4)])
    whole = file.read_bytes()
    last = change_log._FRAME.size + len(to_bytes([add(4)]))
    for place in range(len(whole) - last):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        file.write_bytes(damaged)
        with pytest.raises(CorruptIndexError, match="damaged"):
            replayed(tmp_path)


def test_a_file_that_is_not_the_last_must_be_whole(tmp_path):
    file = filled(tmp_path, [add(1)], [add(2)])
    log = ChangeLog(tmp_path)
    log.begin(BASE)
    log.close()
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(CorruptIndexError):
        replayed(tmp_path)


def test_a_file_that_was_hardly_begun_is_no_trouble(tmp_path):
    filled(tmp_path, [add(1)])
    for size in (0, 5, change_log._HEAD.size - 1):
        begun = tmp_path / "changes" / "000000000002.log"
        begun.write_bytes(bytes(size))
        assert [change.ids.tolist() for change in replayed(tmp_path)] == [[1]]
        assert not begun.exists()


def test_changes_to_another_index_are_refused(tmp_path):
    filled(tmp_path, [add(1)])
    with pytest.raises(StorageError, match="1 changes to an index that is not there any more"):
        replayed(tmp_path, "b" * 32)


def test_the_generation_about_to_be_saved_is_known_as_well(tmp_path):
    filled(tmp_path, [add(1)])
    log = ChangeLog(tmp_path)
    log.begin(BASE, "c" * 32)
    log.close()
    assert len(replayed(tmp_path, "c" * 32)) == 1


def test_two_writers_cannot_have_one_log(tmp_path):
    log = ChangeLog(tmp_path)
    with pytest.raises(IndexLockedError, match="another writer or by a service"):
        ChangeLog(tmp_path)
    log.close()
    ChangeLog(tmp_path).close()


def test_a_full_disk_leaves_no_half_frame(tmp_path, monkeypatch):
    log = ChangeLog(tmp_path)
    log.begin(BASE)
    log.append([add(1)])
    real, calls = os.write, []

    def short(handle, data):
        calls.append(len(data))
        if len(calls) == 1:
            return real(handle, bytes(data[:10]))
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        with pytest.raises(StorageError, match="No space left"):
            log.append([add(2)])
    log.append([add(3)])  # there is space again
    log.close()
    assert [change.ids.tolist() for change in replayed(tmp_path)] == [[1], [3]]


def test_after_a_failed_flush_nothing_is_taken_any_more(tmp_path, monkeypatch):
    log = ChangeLog(tmp_path)
    log.begin(BASE)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(5, "I/O error")))
        with pytest.raises(StorageError, match=r"on disk is unknown: .* I/O error"):
            log.append([add(1)])
    with pytest.raises(StorageError, match="no changes are taken"):
        log.append([add(2)])
    log.close()


def test_records_cannot_pose_as_frames(tmp_path):
    """Vectors that contain the bytes of a frame's head do not turn a torn end into damage."""
    file = filled(tmp_path, [add(1)])
    head = file.read_bytes()[change_log._HEAD.size :][: change_log._FRAME.size]
    vector = np.frombuffer(head, np.float32)
    other = tmp_path / "other"
    other.mkdir()
    file = filled(other, [Add(np.array([1]), np.array([[0]]), vector[None], None)])
    file.write_bytes(file.read_bytes()[:-1])
    assert replayed(other) == []


def test_the_folder_itself_lasts(tmp_path, monkeypatch):
    """A file that was flushed is lost with its folder, if that was never flushed."""
    flushed = []
    real = os.fsync

    def note(handle):
        flushed.append((os.fstat(handle).st_ino, (tmp_path / "changes").exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", note)
    log = ChangeLog(tmp_path)
    log.begin(BASE)
    assert (tmp_path.stat().st_ino, True) in flushed
    log.close()


def test_files_that_cannot_be_dropped_are_told_as_an_error_of_storage(tmp_path, monkeypatch):
    log = ChangeLog(tmp_path)
    log.begin(BASE)
    number = log.begin(BASE)

    def fail(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.unlink", fail)
        with pytest.raises(StorageError, match="Permission denied"):
            log.drop_before(number)
    log.drop_before(number)
    log.append([add(1)])
    log.close()
    assert len(list((tmp_path / "changes").glob("*.log"))) == 1


def test_files_of_others_in_the_folder_stay(tmp_path):
    filled(tmp_path, [add(1)])
    for name in ("notes.log", "7.log", "000000000000.txt"):
        (tmp_path / "changes" / name).write_text("mine")
    assert [change.ids.tolist() for change in replayed(tmp_path)] == [[1]]
    log = ChangeLog(tmp_path)
    log.drop_before(log.begin(BASE))
    log.close()
    names = {path.name for path in (tmp_path / "changes").iterdir()}
    assert {"notes.log", "7.log", "000000000000.txt"} < names
