"""An index of a stranger, every checksum right: all numbers are checked, and again by verify."""

import itertools
import json
import os
import zlib

import numpy as np
import pytest

from hashcade import CodeShape, CorruptIndexError, HashcadeError, HashIndex, StorageError
from tests.hostile import forge
from tests.hostile.child import in_child

SHAPE = CodeShape(width=4, depth=2, sparsity=2)
N, DIM = 60, 5


def make(path, *, unit_length=False, sparsity=2, removed=True, first_pass=None):
    rng = np.random.default_rng(0)
    shape = CodeShape(width=4, depth=2, sparsity=sparsity)
    index = HashIndex.build(
        rng.integers(0, 16, (N, sparsity)), rng.normal(size=(N, DIM)),
        labels=rng.integers(-1, 3, N), shape=shape, unit_length=unit_length,
        first_pass=first_pass,
    )  # fmt: skip
    if removed:
        index.remove([3, 4])
    index.save(path)
    return path


def use(path):
    """Open, search in every way, change and verify: whether each way of opening was refused."""
    said = []
    queries = np.ones((5, DIM), np.float32)
    where = ({"bucket_ids": np.tile(np.arange(16), (5, 1))}, {"scores": np.ones((5, 2, 4))})
    more = ({}, {"max_candidates": 7}, {"exclude_self": True}, {"filter_ids": range(50)})
    for mmap in (True, False):
        try:
            index = HashIndex.load(path, mmap=mmap)
            for places, options in itertools.product(where, more):
                index.search(queries, n_neighbors=9, threads=1, **places, **options)
            index.stats(), index.explain(queries[0], bucket_ids=[1])
            index.labels_of([1, 2]), index.contains([1, 2]), index.entries()
            index.add(np.zeros((1, index.shape.sparsity), int), queries[:1], labels=[0])
            said.append("accepted")
        except HashcadeError:
            said.append("refused")
    try:
        HashIndex.load(path).verify()
        return [*said, "sound"]
    except HashcadeError:
        return [*said, "unsound"]


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
    """Kernels are in memory before processes are forked."""
    assert use(make(tmp_path_factory.mktemp("sound") / "a")) == ["accepted", "accepted", "sound"]


def first(name, value, at=0):
    def change(arrays, record, body):
        arrays[name].reshape(-1)[at] = value

    return change


def in_record(name, value):
    def change(arrays, record, body):
        record[name] = value

    return change


def in_body(name, value):
    def change(arrays, record, body):
        body[name] = value

    return change


def several(*changes):
    def change(arrays, record, body):
        for each in changes:
            each(arrays, record, body)

    return change


def all_zero_norm(arrays, record, body):
    record["max_norm"] = 0


def twice_in_a_bucket(arrays, record, body):
    row = int(np.flatnonzero(np.diff(arrays["offsets"]) >= 2)[0])
    at = int(arrays["offsets"][row])
    for name in ("items", "ids", "labels", "vectors"):
        arrays[name][at + 1] = arrays[name][at]


def copies_differ(arrays, record, body):
    values, counts = np.unique(arrays["items"], return_counts=True)
    at = np.flatnonzero(arrays["items"] == values[counts > 1][0])[0]
    arrays["vectors"][at] = 0.5


def labels_differ(arrays, record, body):
    values, counts = np.unique(arrays["items"], return_counts=True)
    at = np.flatnonzero(arrays["items"] == values[counts > 1][0])[0]
    arrays["labels"][at] = 1 - arrays["labels"][at]  # never the same


def empty_items(arrays, record, body):
    """No item, so a kernel would count none; their numbers are there all the same."""
    removed = record["removed"]["n_items"] if record["removed"] else 0
    record["n_items"], body["n_items"] = 0, -removed


ATTACKS = {
    "items 2^31-1": first("items", 2**31 - 1),
    "items -1": first("items", -1),
    "items -2^31": first("items", -(2**31)),
    "n_items 0": empty_items,
    "n_items -5": several(in_record("n_items", -5), in_body("n_items", -7)),
    "n_items 2^62": several(in_record("n_items", 2**62), in_body("n_items", 2**62 - 2)),
    "n_items one less": several(in_record("n_items", N - 1), in_body("n_items", N - 3)),
    "n_items text": in_record("n_items", "60"),
    "bucket beyond the table": first("buckets", 10**9, at=-1),
    "bucket negative": first("buckets", -1),
    "offset beyond the end": first("offsets", 10**9, at=-1),
    "offset negative": first("offsets", -8, at=1),
    "offset 2^63-1": first("offsets", 2**63 - 1, at=2),
    "id negative": first("ids", -7),
    "id -1": first("ids", -1),
    "id beyond next_id": first("ids", 10**6),
    "label below -1": first("labels", -9),
    "labels differ": labels_differ,
    "vector NaN": first("vectors", np.nan),
    "vector infinite": first("vectors", np.inf),
    "copies differ": copies_differ,
    "twice in a bucket": twice_in_a_bucket,
    "max_norm 0": all_zero_norm,
    "max_norm too small": in_record("max_norm", 1e-3),
    "max_norm negative": in_record("max_norm", -1.0),
    "max_norm NaN": in_record("max_norm", float("nan")),
    "max_norm text": in_record("max_norm", "2.0"),
    "next_id -5": in_body("next_id", -5),
    "next_id text": in_body("next_id", "x"),
    "next_id too small": in_body("next_id", 10),
    "next_id 2^64": in_body("next_id", 2**64),
    "dim 0": in_body("dim", 0),
    "dim twice": in_body("dim", 2 * DIM),
    "dim text": in_body("dim", "5"),
    "shape smaller": in_body("shape", {"width": 3, "depth": 2, "sparsity": 2}),
    "shape of one item per bucket": in_body("shape", {"width": 16, "depth": 1, "sparsity": 1}),
    "shape of a billion levels": in_body("shape", {"width": 1, "depth": 10**9, "sparsity": 1}),
    "unit length claimed": in_body("unit_length", True),
    "with_labels denied": in_body("with_labels", False),
    "more entries": in_record("n_entries", 10**9),
    "uid with separators": in_record("uid", "../../x"),
    "code another": first("codes", 77),
    "code -128": first("codes", -128),
    "code scale 0": first("code_bounds", 0.0),
    "code scale negative": first("code_bounds", -1.0),
    "code scale NaN": first("code_bounds", np.nan),
    "code scale infinite": first("code_bounds", np.inf),
    "code error 0": first("code_bounds", 0.0, at=1),
    "code error negative": first("code_bounds", -1e9, at=1),
    "code error NaN": first("code_bounds", np.nan, at=1),
    "code square 0": first("code_bounds", 0.0, at=2),
    "code square NaN": first("code_bounds", np.nan, at=2),
    "codes denied": in_body("first_pass", None),
    "codes of another kind": in_body("first_pass", "int4"),
    "codes as a list": in_body("first_pass", ["int8"]),
    "float16 claimed": in_body("dtype", "float16"),
    "dtype of another kind": in_body("dtype", "float64"),
    "vector that its code is not of": first("vectors", 0.123),
}


@pytest.mark.promise("H5", "index of a stranger, checksums right, one number out of range")
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_number_of_a_stranger_is_used_unchecked(tmp_path, attack, cases):
    first_pass = "int8" if "code" in attack else None
    forge.edit(make(tmp_path / "a", first_pass=first_pass), ATTACKS[attack])
    outcome, said = in_child(use, tmp_path / "a", seconds=60, more_memory=2 << 30)
    assert outcome == "done", (outcome, said)
    assert said[2] == "unsound"
    if attack not in ("labels differ", "copies differ", "twice in a bucket"):  # found by verify
        assert said[:2] == ["refused", "refused"]
    cases.add()


@pytest.mark.promise("H5", "index of a stranger, checksums right, one number out of range")
def test_removed_entries_of_a_stranger(tmp_path, cases):
    for number, wrong in enumerate((-1, 10**9, "2", None, 1.5, True)):
        path = make(tmp_path / f"{number}")
        body = forge.manifest_of(path)
        body["segments"][0]["removed"]["n_items"] = wrong
        forge.write_manifest(path, body)
        with pytest.raises(CorruptIndexError):
            HashIndex.load(path)
        cases.add()


@pytest.mark.promise("H5", "manifest of a stranger: sections, names, sizes, nesting")
def test_a_manifest_of_a_stranger(tmp_path, cases):
    path = make(tmp_path / "a")
    sound = forge.manifest_of(path)
    wrong = {
        "offset": (-64, 1, 2**62, "0", None, 0.0),
        "bytes": (-1, 1, 2**62, "64", None),
        "dtype": ("O", "<f8", "V16", "S0", [["a", "<f4"]], None, ">i8", "<M8[s]"),
        "shape": ([-1], [2**32, 2**32], [1, 2, 3], [], "2", [2**70], None, [True]),
        "crc32": (-1, 2**40, None, "0"),
    }
    for name, values in wrong.items():
        for section in ("vectors", "ids", "offsets", "blocks"):
            for value in values:
                body = json.loads(json.dumps(sound))
                body["segments"][0]["sections"][section][name] = value
                forge.write_manifest(path, body)
                with pytest.raises(CorruptIndexError):
                    HashIndex.load(path).search([[0.0] * DIM], bucket_ids=[0], n_neighbors=5)
                cases.add()
    names = ("/etc/passwd", "../a/segment-x.bin", "..", "", "segment-\0.bin", None, 7, ["a"])
    for key in ("file", "uid"):
        for value in names:
            body = json.loads(json.dumps(sound))
            body["segments"][0][key] = value
            forge.write_manifest(path, body)
            with pytest.raises(CorruptIndexError):
                HashIndex.load(path)
            cases.add()
    for segments in (None, {}, "x", [[]], [None], sound["segments"] * 2, sound["segments"] * 1000):
        forge.write_manifest(path, {**sound, "segments": segments})
        with pytest.raises(CorruptIndexError):
            HashIndex.load(path)
        cases.add()
    deep = b"[" * 100_000
    rest = b'", "segments": ' + deep
    (path / "manifest.json").write_bytes(forge.HEAD + b"%08x" % zlib.crc32(rest) + rest)
    with pytest.raises(CorruptIndexError):
        HashIndex.load(path)


@pytest.mark.promise("H5", "a uid of a stranger becomes the name of a file elsewhere")
def test_a_copy_of_an_index_of_a_stranger_stays_in_its_directory(tmp_path, cases):
    """A uid names the file when an index is saved to another place."""
    path = make(tmp_path / "a", removed=False)
    body = forge.manifest_of(path)
    record = body["segments"][0]
    uid = "x/../../../out"
    (path / "segment-x").mkdir()
    os.rename(path / record["file"], tmp_path / "out.bin")
    record["uid"], record["file"] = uid, f"segment-{uid}.bin"
    forge.write_manifest(path, body)
    (tmp_path / "b" / "segment-x").mkdir(parents=True)
    with pytest.raises(StorageError):
        HashIndex.load(path).save(tmp_path / "c" / "d")
    cases.add()


@pytest.mark.promise("H5", "index of a stranger, checksums right, one number out of range")
def test_cosine_needs_vectors_of_unit_length(tmp_path, cases):
    path = make(tmp_path / "a", unit_length=True)
    HashIndex.load(path).verify()

    def longer(arrays, record, body):
        arrays["vectors"] *= np.float32(0.9)

    forge.edit(path, longer)
    with pytest.raises(CorruptIndexError, match="length 1"):
        HashIndex.load(path).search(
            np.ones((1, DIM)), bucket_ids=np.arange(16)[None], metric="cosine"
        )
    with pytest.raises(CorruptIndexError, match="length 1"):
        HashIndex.load(path).verify()
    cases.add(2)


@pytest.mark.promise("H5", "index of a stranger, checksums right, one number out of range")
def test_an_id_of_a_removed_entry_is_not_used_again(tmp_path, cases):
    """Found by the fuzzer: ids of a range are looked up by their place in it."""
    path = make(tmp_path / "a", sparsity=1)

    def again(arrays, record, body):
        arrays["ids"][arrays["ids"] == 7] = 3  # which was removed

    forge.edit(path, again)
    with pytest.raises(CorruptIndexError, match="60 entries must be of 60 items"):
        HashIndex.load(path).verify()
    cases.add()
