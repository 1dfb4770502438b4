"""Storing: what is read is what was written, and every damage is refused."""

import json
import os
import subprocess
import sys
import zlib
from dataclasses import replace

import numpy as np
import pytest

from hashcade import (
    CodeShape,
    CorruptIndexError,
    HashIndex,
    IncompatibleFormatError,
    IndexLockedError,
    StorageError,
)
from hashcade._io import writer_lock
from hashcade.index import is_index, new_generation, read_generation, storage
from hashcade.index import segment as segment_module
from hashcade.index.storage import read_manifest

SHAPE = CodeShape(width=5, depth=2, sparsity=2)


def some_index(seed=0, n=120, dim=7, labels=True):
    rng = np.random.default_rng(seed)
    index = HashIndex.build(
        rng.integers(0, 25, (n, 2)), rng.normal(size=(n, dim)),
        labels=rng.integers(0, 4, n) if labels else None, shape=SHAPE,
    )  # fmt: skip
    index.add(
        rng.integers(0, 25, (9, 2)), rng.normal(size=(9, dim)), labels=[1] * 9 if labels else None
    )
    index.remove([3, 40, n + 2])
    return index


def read_all(index):
    """Search every bucket for every item: reads every block."""
    everything = np.arange(SHAPE.n_buckets)[None]
    result = index.search(np.zeros((1, index.dim)), bucket_ids=everything, n_neighbors=400)
    return result.ids.tobytes() + result.distances.tobytes()


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("labels", [True, False])
def test_what_is_read_is_what_was_written(tmp_path, mmap, labels):
    index = some_index(labels=labels)
    index.save(tmp_path / "a")
    loaded = HashIndex.load(tmp_path / "a", mmap=mmap)
    assert read_all(loaded) == read_all(index)
    assert len(loaded) == len(index)
    assert loaded.shape == index.shape
    assert loaded.next_id == index.next_id
    loaded.verify()
    loaded.save(tmp_path / "deep" / "b")  # and from one directory to another
    assert read_all(HashIndex.load(str(tmp_path / "deep" / "b"))) == read_all(index)


def test_an_empty_index_is_stored_too(tmp_path):
    HashIndex.build(np.empty((0, 2), int), np.empty((0, 7)), shape=SHAPE).save(tmp_path / "a")
    loaded = HashIndex.load(tmp_path / "a")
    assert len(loaded) == 0
    loaded.verify()
    assert loaded.search(np.zeros((1, 7)), bucket_ids=[[0]], n_neighbors=1).ids.tolist() == [[-1]]


def test_a_small_change_does_not_rewrite_everything(tmp_path):
    index = some_index(n=4000)
    index.save(tmp_path / "a")
    stamp = lambda: {p.name: p.stat().st_mtime_ns for p in (tmp_path / "a").iterdir()}  # noqa: E731
    before = stamp()
    large = max((tmp_path / "a").iterdir(), key=lambda p: p.stat().st_size).name
    index.add([[1, 2]], np.zeros((1, 7)), labels=[0])
    index.remove([77])
    index.save(tmp_path / "a")
    after = stamp()
    assert after[large] == before[large]
    new = [tmp_path / "a" / name for name in after if before.get(name) != after[name]]
    assert sum(p.stat().st_size for p in new) < (tmp_path / "a" / large).stat().st_size / 10
    assert read_all(HashIndex.load(tmp_path / "a")) == read_all(index)
    files = read_manifest(tmp_path / "a").files() | {"manifest.json", "lock"}
    assert set(after) == files  # nothing is left lying about


def test_files_are_json_and_raw_little_endian_arrays(tmp_path):
    index = HashIndex.build([3, 1], [[1.0, 2.0], [3.0, 4.0]], shape=CodeShape(width=4, depth=1))
    index.save(tmp_path / "a")
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"]) == ("hashcade-index", 1)
    (segment,) = manifest["segments"]
    raw = (tmp_path / "a" / segment["file"]).read_bytes()
    sections = segment["sections"]
    vectors = np.frombuffer(raw, "<f4", 4, sections["vectors"]["offset"])
    assert vectors.tolist() == [3.0, 4.0, 1.0, 2.0]  # by bucket
    assert np.frombuffer(raw, "<i8", 2, sections["ids"]["offset"]).tolist() == [1, 0]
    # A block can be checked by its reader: ids, then vectors.
    block = np.frombuffer(raw, "<u4", 2, sections["blocks"]["offset"])[0]
    assert block == zlib.crc32(vectors[:2].tobytes(), zlib.crc32(np.int64(1).tobytes()))


# -- damage ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "a"
    index = some_index()
    index.save(path)
    return path, read_all(index)


def flip(path, at, bits):
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ bits]))


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_every_byte_of_the_manifest_matters(stored, step):
    path, _ = stored
    manifest = path / "manifest.json"
    good = manifest.read_bytes()
    rng = np.random.default_rng(0)
    try:
        for at in range(0, len(good), step):
            for bits in {1, 0x20, int(rng.integers(1, 256))}:
                bad = bytearray(good)
                bad[at] ^= bits
                manifest.write_bytes(bytes(bad))
                with pytest.raises((CorruptIndexError, IncompatibleFormatError)):
                    HashIndex.load(path)
    finally:
        manifest.write_bytes(good)
    HashIndex.load(path).verify()


def test_a_thousand_flipped_bytes_of_the_sections_are_refused(stored):
    path, good = stored
    files = sorted(read_manifest(path).files())
    sizes = [(path / name).stat().st_size for name in files]
    rng = np.random.default_rng(1)
    # The kinds of files by turns: the removal marks are small, and would never be hit.
    for k in range(1000):
        number = k % len(files)
        at = int(rng.integers(sizes[number]))
        bits = 1 << int(rng.integers(8)) if k % 2 else int(rng.integers(1, 256))
        flip(path / files[number], at, bits)
        try:
            # A map reads what it needs: padding, and copies of items that were seen already, it
            # does not. Then the answer must be right; reading everything must find the damage.
            loads = None
            with pytest.raises(StorageError):
                HashIndex.load(path, mmap=False)
            try:
                loads = HashIndex.load(path)
                answer = read_all(loads)
            except StorageError:
                pass
            else:
                assert answer == good
            if loads is not None:
                with pytest.raises(CorruptIndexError):
                    loads.verify()
        finally:
            flip(path / files[number], at, bits)
    assert read_all(HashIndex.load(path, mmap=False)) == good


def test_a_flipped_byte_in_a_block_is_an_error_when_it_is_read(tmp_path):
    """One bucket per item, all of them read: no damage may go unseen."""
    path = tmp_path / "a"
    rng = np.random.default_rng(0)
    index = HashIndex.build(
        rng.integers(0, 25, 100), rng.normal(size=(100, 7)), labels=rng.integers(0, 4, 100),
        shape=CodeShape(width=5, depth=2),
    )  # fmt: skip
    index.save(path)
    good = read_all(index)
    (record,) = read_manifest(path).segments
    for name in ("vectors", "ids", "labels"):
        section = record["sections"][name]
        used = int(np.prod(section["shape"])) * np.dtype(section["dtype"]).itemsize
        for at in np.linspace(0, used - 1, 25).astype(int).tolist():
            flip(path / record["file"], section["offset"] + at, 0x10)
            try:
                loaded = HashIndex.load(path)
                with pytest.raises(CorruptIndexError):
                    read_all(loaded)
                with pytest.raises(CorruptIndexError):
                    loaded.verify()
                with pytest.raises(CorruptIndexError):
                    HashIndex.load(path, mmap=False)
            finally:
                flip(path / record["file"], section["offset"] + at, 0x10)
    assert read_all(HashIndex.load(path)) == good


def test_truncation_at_every_boundary_is_refused(stored):
    path, good = stored
    manifest = read_manifest(path)
    cuts = []
    for record in manifest.segments:
        ends = [0, *(s["offset"] + s["bytes"] for s in record["sections"].values())]
        cuts += [(record["file"], end + d) for end in ends for d in (-1, 0, 1)]
        if record["removed"]:
            cuts += [(record["removed"]["file"], n) for n in (0, 1, record["removed"]["bytes"] - 1)]
            cuts += [(record["removed"]["file"], record["removed"]["bytes"] + 1)]
    manifest_size = (path / "manifest.json").stat().st_size
    cuts += [("manifest.json", n) for n in (0, 1, 14, 22, 100, manifest_size - 1)]
    cuts += [("manifest.json", manifest_size + 1)]
    tried = 0
    for name, size in cuts:
        whole = (path / name).read_bytes()
        if size < 0 or size == len(whole):
            continue
        (path / name).write_bytes(whole[:size] + b"\0" * (size - len(whole)))
        try:
            with pytest.raises(StorageError):
                HashIndex.load(path)
            with pytest.raises(StorageError):
                HashIndex.load(path, mmap=False)
        finally:
            (path / name).write_bytes(whole)
        tried += 1
    assert tried > 40
    assert read_all(HashIndex.load(path)) == good


def test_a_file_that_shrinks_after_loading_is_an_error_not_a_crash(tmp_path):
    index = some_index()
    index.save(tmp_path / "a")
    loaded = HashIndex.load(tmp_path / "a")
    for name in read_manifest(tmp_path / "a").files():
        os.truncate(tmp_path / "a" / name, 10)
    with pytest.raises(CorruptIndexError, match="10 bytes, must have"):
        read_all(loaded)
    with pytest.raises(CorruptIndexError, match="10 bytes, must have"):
        loaded.verify()


def test_verify_says_all_that_is_wrong(tmp_path):
    some_index(n=500).save(tmp_path / "a")
    record = read_manifest(tmp_path / "a").segments[0]
    loaded = HashIndex.load(tmp_path / "a")
    for at in (
        0,
        record["sections"]["vectors"]["bytes"] - 200,
        record["sections"]["ids"]["offset"],
    ):
        flip(tmp_path / "a" / record["file"], at, 0xFF)
    flip(tmp_path / "a" / "manifest.json", 40, 1)
    with pytest.raises(CorruptIndexError) as caught:
        loaded.verify()
    text = str(caught.value)
    assert "manifest.json is damaged" in text
    assert "section vectors is damaged" in text
    assert "section ids is damaged" in text
    assert text.count("bucket ") >= 2


def test_damage_does_not_get_a_new_checksum(tmp_path):
    some_index().save(tmp_path / "a")
    record = read_manifest(tmp_path / "a").segments[0]
    flip(tmp_path / "a" / record["file"], 5, 1)
    loaded = HashIndex.load(tmp_path / "a")
    with pytest.raises(CorruptIndexError):
        loaded.save(tmp_path / "b")
    assert not (tmp_path / "b" / "manifest.json").exists()
    with pytest.raises(CorruptIndexError):
        loaded.compact()


def test_damaged_ids_are_seen_by_changes(tmp_path):
    some_index().save(tmp_path / "a")
    record = read_manifest(tmp_path / "a").segments[0]
    flip(tmp_path / "a" / record["file"], record["sections"]["ids"]["offset"], 1)
    loaded = HashIndex.load(tmp_path / "a")
    with pytest.raises(CorruptIndexError, match="section ids"):
        loaded.remove([0])


# -- other formats, other writers --------------------------------------------------------------


def test_another_version_is_refused_by_name(tmp_path):
    some_index().save(tmp_path / "a")
    manifest = tmp_path / "a" / "manifest.json"
    body = manifest.read_bytes()[22:].replace(b'"version": 1,', b'"version": 2,')
    manifest.write_bytes(b'{"checksum": "%08x' % zlib.crc32(body) + body)
    with pytest.raises(IncompatibleFormatError, match="version 2, this package reads 1"):
        HashIndex.load(tmp_path / "a")
    with pytest.raises(IncompatibleFormatError):  # nor is it overwritten
        some_index().save(tmp_path / "a")


def test_a_manifest_that_makes_no_sense_is_corrupt(tmp_path):
    some_index().save(tmp_path / "a")
    manifest = tmp_path / "a" / "manifest.json"
    good = manifest.read_bytes()[22:]
    for old, new in [
        (b'"dim": 7', b'"dim": 8'),
        (b'"dim": 7', b'"dim": "x"'),
        (b'"segments"', b'"segmentz"'),
        (b'"width": 5', b'"width": 2'),
        (b'"n_items": 126', b'"n_items": 125'),
        (b'"dtype": "<f4"', b'"dtype": "<f8"'),
        (b'"with_labels": true', b'"with_labels": false'),
    ]:
        body = good.replace(old, new)
        assert body != good, old
        manifest.write_bytes(b'{"checksum": "%08x' % zlib.crc32(body) + body)
        with pytest.raises(CorruptIndexError):
            HashIndex.load(tmp_path / "a")


def test_no_index_and_foreign_directories_are_refused(tmp_path):
    with pytest.raises(StorageError, match="holds no index"):
        HashIndex.load(tmp_path / "nothing")
    (tmp_path / "photo.jpg").write_text("dear to somebody")
    with pytest.raises(StorageError, match=r"not an index and not empty: photo\.jpg"):
        some_index().save(tmp_path)
    with pytest.raises(StorageError, match="cannot write"):
        some_index().save(tmp_path / "photo.jpg")
    assert (tmp_path / "photo.jpg").read_text() == "dear to somebody"


def test_the_second_writer_is_told(tmp_path):
    index = some_index()
    index.save(tmp_path / "a")
    with (
        writer_lock(tmp_path / "a"),
        pytest.raises(IndexLockedError, match="another writer"),
    ):
        index.save(tmp_path / "a")
    index.save(tmp_path / "a")


def test_changes_of_another_writer_are_not_overwritten_unseen(tmp_path):
    index = some_index()
    index.save(tmp_path / "a")
    one, two = HashIndex.load(tmp_path / "a"), HashIndex.load(tmp_path / "a")
    one.remove([0])
    one.save(tmp_path / "a")
    two.remove([1])
    with pytest.raises(StorageError, match="changed by another writer"):
        two.save(tmp_path / "a")
    two.save(tmp_path / "b")
    assert 0 not in HashIndex.load(tmp_path / "a")
    assert 1 in HashIndex.load(tmp_path / "a")
    some_index(seed=1).save(tmp_path / "a")  # a new index may take the place of an old one


def test_a_reader_keeps_what_it_has_loaded(tmp_path):
    index = some_index()
    index.save(tmp_path / "a")
    before = read_all(index)
    loaded = HashIndex.load(tmp_path / "a")
    index.compact()
    index.remove([0, 1, 2])
    index.save(tmp_path / "a")  # sweeps the files that the reader has open
    assert read_all(loaded) == before
    assert read_all(HashIndex.load(tmp_path / "a")) == read_all(index)


# -- generations, and what other layers build on ------------------------------------------------


def test_generations_say_which_state_is_on_disk(tmp_path):
    path = tmp_path / "a"
    index = some_index()
    assert index.generation is None
    assert not is_index(path)
    with pytest.raises(StorageError, match="holds no index"):
        read_generation(path)
    name = new_generation()
    index.save(path, generation=name)
    assert is_index(path)
    assert index.generation == read_generation(path) == HashIndex.load(path).generation == name
    assert index.is_stored_as(name)
    index.save(path)
    assert index.generation == read_generation(path) != name
    assert not index.is_stored_as(name)


def test_a_copy_is_saved_while_the_index_goes_on(tmp_path):
    path = tmp_path / "a"
    index = some_index()
    index.save(path)
    copy = index.copy()
    index.remove([0])
    with writer_lock(path):
        copy.save(path, lock_held=True)
    with pytest.raises(StorageError, match="changed by another writer") as caught:
        index.save(path)
    assert caught.value.hint == "load it again, or save elsewhere"
    index.adopt_storage(copy)
    assert index.generation == copy.generation
    index.save(path)
    assert 0 not in HashIndex.load(path)


def test_a_save_whose_last_flush_failed_may_be_there(tmp_path, monkeypatch):
    path = tmp_path / "a"
    index = some_index()
    index.save(path)
    old, new = index.generation, new_generation()
    index.remove([0])
    real = storage.sync_directory

    def fail_after_the_rename(directory):
        if read_generation(directory) == new:
            raise OSError(5, "Input/output error")
        real(directory)

    monkeypatch.setattr(storage, "sync_directory", fail_after_the_rename)
    with pytest.raises(StorageError, match="Input/output error"):
        index.save(path, generation=new)
    monkeypatch.undo()
    assert index.is_stored_as(old)
    assert index.is_stored_as(new)
    index.save(path)
    assert 0 not in HashIndex.load(path)


def test_item_numbers_out_of_range_do_not_reach_the_kernel(tmp_path):
    """Checksums and structure are right, but a number points beyond the items."""
    path = tmp_path / "a"
    index = some_index()
    segment = index._snapshot.views[0].segment
    bad = np.array(segment.items)
    bad[5] = 2**30
    view = segment_module.View(replace(segment, items=bad))
    index._snapshot = replace(index._snapshot, views=(view, *index._snapshot.views[1:]))
    storage.save(path, index._snapshot, new_generation(), None)
    manifest = read_manifest(path)
    assert manifest.segments[0]["n_items"] == segment.n_items
    loaded = HashIndex.load(path)
    with pytest.raises(CorruptIndexError, match=r"items must be in 0\.\.119"):
        read_all(loaded)
    with pytest.raises(CorruptIndexError, match=r"items must be in 0\.\.119"):
        HashIndex.load(path, mmap=False)


def test_it_can_be_imported_where_there_are_no_unix_locks():
    code = "import sys; sys.modules['fcntl'] = None; from hashcade import HashIndex"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
