"""The fuzzer on models, data, images, records of changes, the protocol, and cached features."""

import json
import shutil
import sqlite3
import struct
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np

from hashcade import Hasher, HashIndex
from hashcade.data import IMAGE_FORMATS, load_items, load_npz, read_image, read_npz
from hashcade.errors import CorruptIndexError
from hashcade.store.changes import Add, Remove, apply_changes, from_record, to_records
from tests.hostile.fuzz_index import DIM, SHAPES
from tests.hostile.fuzz_mutations import WrongAnswerError, mutate_array, mutate_json, mutated_bytes

GOLDEN_MODEL = Path(__file__).parents[1] / "learn" / "golden" / "model"


# -- models ----


def golden_model(folder):
    shutil.copytree(GOLDEN_MODEL, folder / "0")


def mutate_config(rng, folder):
    path = next(folder.iterdir()) / "config.json"
    config = json.loads(path.read_text())
    part = rng.choice([config["resolved"], config["resolved"], config["resolved"]["shape"], config])
    mutate_json(rng, part)
    path.write_text(json.dumps(config))


def mutate_weights(rng, folder):
    import hashlib

    from safetensors.numpy import load, save

    path = next(folder.iterdir())
    blob = (path / "model.safetensors").read_bytes()
    if rng.random() < 0.4:
        blob = mutated_bytes(rng, blob)
    else:
        arrays = {name: np.array(array) for name, array in load(blob).items()}
        name = rng.choice(list(arrays))
        kind = rng.random()
        if kind < 0.5 and arrays[name].size:
            mutate_array(rng, arrays[name])
        elif kind < 0.6:
            del arrays[name]
        elif kind < 0.7:
            arrays[name] = arrays[name].astype(rng.choice(["<f2", "<f8", "<i4", "u1", "?"]))
        elif kind < 0.85:
            arrays[name] = np.resize(arrays[name], rng.choice([(0,), (1,), (3, 3), (2, 0), (700,)]))
        else:
            arrays[name] = arrays[rng.choice(list(arrays))]
        blob = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    (path / "model.safetensors").write_bytes(blob)
    config = json.loads((path / "config.json").read_text())
    config |= {"model_bytes": len(blob), "model_sha256": hashlib.sha256(blob).hexdigest()}
    (path / "config.json").write_text(json.dumps(config))


def read_model(folder):
    hasher = Hasher.load(next(folder.iterdir()))
    if np.prod(hasher.item_shape) > 10**6:
        raise WrongAnswerError(f"items of shape {hasher.item_shape}")
    encoded = hasher.encode(np.linspace(-1, 1, 3 * hasher.n_features_in_, dtype=np.float32)
                            .reshape(3, *hasher.item_shape), n_probe=2)  # fmt: skip
    buckets = encoded.bucket_ids
    if buckets.min() < 0 or buckets.max() >= hasher.shape_.n_buckets:
        raise WrongAnswerError("a bucket that is not in the table")
    hasher.place(encoded, np.array([hasher.classes_.tolist()[0], None, "?"], dtype=object))
    repr(hasher)


# -- data ----


def golden_arrays(folder):
    rng = np.random.default_rng(0)
    for name, array in {
        "a": rng.normal(size=(20, 6)).astype(np.float32), "b": rng.normal(size=(7, 3)),
        "c": rng.integers(0, 255, (3, 4, 4, 3)).astype(np.uint8), "d": np.array(["x", "yy"]),
    }.items():  # fmt: skip
        (folder / name).mkdir()
        np.save(folder / name / "x.npy", array)


def golden_npz(folder):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 6)).astype(np.float32), np.arange(20) % 3
    for name, save in (("plain", np.savez), ("packed", np.savez_compressed)):
        (folder / name).mkdir()
        save(folder / name / "x.npz", X=X, y=y)


def golden_parquet(folder):
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    columns = {
        "embedding": list(rng.normal(size=(30, 4)).astype(np.float32)), "label": [0, 1, 2] * 10,
        "t": [f"t{k}" for k in range(30)],
    }  # fmt: skip
    for name, how in {
        "a": {},
        "b": {"compression": "zstd"},
        "c": {"use_dictionary": False},
    }.items():
        (folder / name).mkdir()
        parquet.write_table(pa.table(columns), folder / name / "x.parquet", **how)


def golden_images(folder):
    from PIL import Image

    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 255, (9, 11, 3)).astype(np.uint8))
    for name in IMAGE_FORMATS:
        (folder / name).mkdir()
        image.save(folder / name / "x.png", name)


def mutate_file(rng, folder):
    path = next(next(folder.iterdir()).iterdir())
    path.write_bytes(mutated_bytes(rng, path.read_bytes()))


def mutate_npz(rng, folder):
    """The archive, or an array in it, with a right checksum."""
    import io
    import zipfile

    path = next(next(folder.iterdir()).iterdir())
    if rng.random() < 0.5:
        mutate_file(rng, folder)
        return
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    members[name] = mutated_bytes(rng, members[name])
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as new:
        for key, content in members.items():
            new.writestr(key, content)
    path.write_bytes(data.getvalue())


def read_data(folder):
    load_items(next(next(folder.iterdir()).iterdir()))


def read_archive(folder):
    path = next(next(folder.iterdir()).iterdir())
    read_npz(path)
    load_npz(path)


def read_columns(folder):
    path = next(next(folder.iterdir()).iterdir())
    load_items(path, payload="all")


def read_picture(folder):
    pixels = read_image(next(next(folder.iterdir()).iterdir()), max_pixels=1_000_000)
    if pixels.ndim != 3 or pixels.dtype != np.uint8:
        raise WrongAnswerError(f"{pixels.dtype}{pixels.shape}")


# -- records, the protocol of the service, and the cache of features ----


def golden_changes(folder):
    rng = np.random.default_rng(0)
    n = 5
    add = Add(np.arange(n) + 30, rng.integers(0, 16, (n, 2)),
              rng.normal(size=(n, DIM)).astype(np.float32), np.arange(n))  # fmt: skip
    for name, change in (("add", add), ("remove", Remove(np.arange(4)))):
        (folder / name).mkdir()
        (folder / name / "x").write_bytes(next(to_records(change)))


@lru_cache
def small_index():
    return HashIndex.build(
        np.arange(20).reshape(10, 2) % 16, np.ones((10, DIM)), labels=np.arange(10), shape=SHAPES[1]
    )


def read_change(folder):
    path = next(next(folder.iterdir()).iterdir())
    change = from_record(path.read_bytes())
    index = small_index().copy()
    for changes in ([change], [change, Remove(np.array([3])), change]):
        try:
            apply_changes(index, changes)
        except (ValueError, IndexError) as error:  # as load_state does
            raise CorruptIndexError(str(error)) from None
        index.verify()


def mutate_record(rng, folder):
    path = next(next(folder.iterdir()).iterdir())
    body = mutated_bytes(rng, path.read_bytes()[4:])
    path.write_bytes(struct.pack("<I", zlib.crc32(body)) + body)


def golden_protocol(folder):
    from hashcade.results import Matches
    from hashcade.serve.binary_format import write_matches

    rng = np.random.default_rng(0)
    found = {
        "exact": np.array([True, True]),
        "labels": np.array([["a", None, 3]] * 2, dtype=object),
        "names": np.array([["n", None, None]] * 2, dtype=object),
        "payload": np.array([[{"a": 1}, None, None]] * 2, dtype=object),
    }
    matches = Matches(
        np.arange(6).reshape(2, 3), rng.normal(size=(2, 3)).astype(np.float32), np.array([5, 6]),
        np.array([True, False]), found.__getitem__,
    )  # fmt: skip
    vectors = rng.normal(size=10).astype("<f4").tobytes()
    for name, data in (
        ("buckets", vectors + np.arange(4, dtype="<i8").tobytes()),
        ("scores", rng.normal(size=10 + 16).astype("<f4").tobytes()),
        ("answer", write_matches(matches)),
    ):  # fmt: skip
        (folder / name).mkdir()
        (folder / name / "x").write_bytes(data)


def read_protocol(folder):
    from hashcade.serve.binary_format import read_matches, read_query

    path = next(next(folder.iterdir()).iterdir())
    data = path.read_bytes()
    try:
        if path.parent.name == "answer":
            matches = read_matches(data, 2, 3)
            matches.labels, matches.names, matches.payload, matches.exact, list(matches)
            return
        by = "bucket_ids" if path.parent.name == "buckets" else "scores"
        vectors, buckets, scores = read_query(data, 2, by, DIM, SHAPES[0])
        where = {"bucket_ids": buckets} if buckets is not None else {"scores": scores}
        small_index().search(vectors, threads=1, **where)
    except ValueError as error:
        raise CorruptIndexError(str(error)) from None


class _Features:
    """As much of ``ImageFeatures`` as the cache looks at."""

    precision = "float32"

    class record:  # noqa: N801
        name, size = "x", 4

        def __repr__(self):
            return "x"


def golden_cache(folder):
    from hashcade.data.feature_cache import FeatureCache

    (folder / "0").mkdir()
    with FeatureCache(folder / "0", _Features()) as cache:
        cache.put({bytes([k]) * 32: np.arange(4, dtype=np.float32) + k for k in range(8)})


def mutate_cache(rng, folder):
    path = next(next(folder.iterdir()).glob("*.db"))
    if rng.random() < 0.6:
        path.write_bytes(mutated_bytes(rng, path.read_bytes()))
        return
    db = sqlite3.connect(path)
    try:
        with db:
            value = rng.choice([b"", b"\0" * 16, b"\xff" * 16, "x", 7, 0.5, "x" * 16])
            db.execute("UPDATE features SET vector = ? WHERE image < ?", (value, bytes([4])))
            if rng.random() < 0.3:
                db.execute(rng.choice(["CREATE TABLE t(x)", "CREATE VIEW v AS SELECT 1"]))
    except sqlite3.Error:
        pass
    finally:
        db.close()


def read_cache(folder):
    from hashcade.data.feature_cache import FeatureCache

    place = next(folder.iterdir())
    (file,) = place.glob("*.db")
    features = _Features()
    file.rename(place / _cache_name(features))
    with FeatureCache(place, features) as cache:
        for k in range(8):
            for vector in cache.get(bytes([k]) * 32).values():
                if vector.shape != (4,) or not np.isfinite(vector).all():
                    raise WrongAnswerError("features of another size, or NaN")


def _cache_name(features):
    import hashlib

    digest = hashlib.sha256(repr((features.record, features.precision)).encode()).hexdigest()
    return f"x-{digest[:16]}.db"


# format: golden files, mutator, reader, share of all cases
FORMATS = {
    "changes": (golden_changes, mutate_record, read_change, 0.05),
    "model config": (golden_model, mutate_config, read_model, 0.10),
    "model weights": (golden_model, mutate_weights, read_model, 0.08),
    "npy": (golden_arrays, mutate_file, read_data, 0.05),
    "npz": (golden_npz, mutate_npz, read_archive, 0.05),
    "parquet": (golden_parquet, mutate_file, read_columns, 0.05),
    "images": (golden_images, mutate_file, read_picture, 0.04),
    "protocol": (golden_protocol, mutate_file, read_protocol, 0.05),
    "feature cache": (golden_cache, mutate_cache, read_cache, 0.03),
}
