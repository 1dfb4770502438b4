"""The fuzzer on the files of an index; what is accepted is compared with brute force."""

import zlib
from contextlib import suppress

import numpy as np

from hashcade import CodeShape, HashIndex
from hashcade.index import encode_int8
from tests.hostile import forge
from tests.hostile.fuzz_mutations import WrongAnswerError, mutate_array, mutate_json, mutated_bytes

SHAPES = (
    CodeShape(width=4, depth=2), CodeShape(width=4, depth=2, sparsity=2),
    CodeShape(width=16, depth=1),
)  # fmt: skip
DIM = 5


def make_index(path, kind):
    rng = np.random.default_rng(kind)
    shape = SHAPES[kind % 3]
    labels = kind % 2 == 0
    n = 40
    index = HashIndex.build(
        rng.integers(0, 16, (n, shape.sparsity)), rng.normal(size=(n, DIM)),
        labels=rng.integers(-1, 3, n) if labels else None, shape=shape, unit_length=kind >= 3,
        first_pass="int8" if kind % 2 else None, dtype="float16" if kind in (1, 2) else "float32",
    )  # fmt: skip
    index.add(
        rng.integers(0, 16, (6, shape.sparsity)), rng.normal(size=(6, DIM)),
        ids=[90, 80, 70, 60, 50, 95], labels=[1] * 6 if labels else None,
    )  # fmt: skip
    index.remove([3, 20, 80])
    index.save(path)


def golden_index(folder):
    for kind in range(6):
        make_index(folder / str(kind), kind)


def mutate_index(rng, folder):
    """Arrays of a segment, or its file, with sizes and checksums that are right."""
    path = next(folder.iterdir())
    body = forge.manifest_of(path)
    segment = rng.randrange(len(body["segments"]))
    record = body["segments"][segment]
    arrays = forge.arrays_of(path, record)
    kind = rng.random()
    if kind < 0.12 and record["removed"]:
        file = path / record["removed"]["file"]
        data = mutated_bytes(rng, file.read_bytes())
        file.write_bytes(data)
        record["removed"] |= {"crc32": zlib.crc32(data), "bytes": len(data)}
    elif kind < 0.25:  # the file itself
        file = path / record["file"]
        file.write_bytes(mutated_bytes(rng, file.read_bytes()))
        if rng.random() < 0.8:
            record["bytes"] = file.stat().st_size
            arrays = _as_they_are(file, record) or arrays
            if arrays is not None:
                forge.write_arrays(path, record, arrays)
    else:
        for _ in range(rng.choice([1, 1, 2])):
            mutate_array(rng, arrays[rng.choice([name for name in arrays if name != "blocks"])])
        if rng.random() < 0.6:  # what follows from the vectors is right again
            with np.errstate(all="ignore"):
                norms = np.sqrt((arrays["vectors"].astype(np.float64) ** 2).sum(axis=1))
            record["max_norm"] = float(norms.max()) * 1.001
            if body["unit_length"] and rng.random() < 0.7:
                scaled = arrays["vectors"] / np.maximum(norms, 1e-30)[:, None]
                arrays["vectors"] = scaled.astype(arrays["vectors"].dtype)
            if "codes" in arrays and rng.random() < 0.7:
                arrays["codes"], arrays["code_bounds"] = encode_int8(
                    arrays["vectors"].astype(np.float32)
                )
        if rng.random() < 0.5:
            body["next_id"] = max(body["next_id"], min(int(arrays["ids"].max()) + 1, 2**63))
        forge.write_arrays(path, record, arrays)
    if rng.random() < 0.15:
        mutate_json(rng, body)
    elif rng.random() < 0.5:
        with suppress(ValueError):  # a file that is too short
            _count_again(path, body)
    forge.write_manifest(path, body)


def _as_they_are(file, record):
    """The arrays of a file that was changed, if it is long enough."""
    try:
        return forge.arrays_of(file.parent, record)
    except ValueError:
        return None


def _count_again(path, body):
    """Counts of items as the content has them."""
    total = 0
    for record in body["segments"]:
        ids = forge.arrays_of(path, record)["ids"]
        live = _live(path, record, len(ids))
        record["n_items"] = len(np.unique(ids))
        if record["removed"]:
            record["removed"]["n_items"] = record["n_items"] - len(np.unique(ids[live]))
        total += len(np.unique(ids[live]))
    body["n_items"] = total


def _live(path, record, n):
    if not record["removed"]:
        return np.ones(n, bool)
    bits = np.frombuffer((path / record["removed"]["file"]).read_bytes(), np.uint8)
    if len(bits) * 8 < n:
        return np.ones(n, bool)
    return np.unpackbits(bits, count=n) == 0


def mutate_manifest(rng, folder):
    path = next(folder.iterdir())
    if rng.random() < 0.1:
        data = (path / "manifest.json").read_bytes()
        rest = mutated_bytes(rng, data[len(forge.HEAD) + 8 :])
        (path / "manifest.json").write_bytes(forge.HEAD + b"%08x" % zlib.crc32(rest) + rest)
        return
    body = forge.manifest_of(path)
    mutate_json(rng, body)
    forge.write_manifest(path, body)


def read_index(folder):
    path = next(folder.iterdir())
    index = HashIndex.load(path)
    dim, shape = index.dim, index.shape
    queries = np.ones((3, dim), np.float32) * np.float32([[1], [0.3], [-2]])
    some = np.unique(np.minimum([0, 1, 5, 7, 15], shape.n_buckets - 1))
    buckets = np.tile(some, (3, 1))
    for options in (
        {}, {"max_candidates": 5, "exclude_self": [1, 2, 3]}, {"filter_ids": [1, 2, 5, 7, 60]},
    ):  # fmt: skip
        index.search(queries, bucket_ids=buckets, n_neighbors=8, threads=1, **options)
    if shape.depth * shape.width < 1000:
        scores = np.linspace(0, 1, 3 * shape.depth * shape.width).reshape(3, shape.depth, -1)
        index.search(queries, scores=scores, n_probe=2, n_neighbors=60, threads=1)
        index.search(queries, scores=scores, n_neighbors=60, threads=1)
    index.verify()
    index.stats()
    compare_index(path, index, queries, buckets)
    if index.next_id >= 2**63:  # no id is left
        return
    other = index.copy()
    ids = other.add(np.zeros((1, shape.sparsity), int), queries[:1] / np.float32(dim**0.5),
                    labels=[0] if other.has_labels else None)  # fmt: skip
    if ids[0] in index:
        raise WrongAnswerError("a new id is one that was there")
    other.compact()
    other.save(folder / "copy")
    HashIndex.load(folder / "copy").verify()


def compare_index(path, index, queries, buckets):
    """Answers of an index beside those of its files, read by other code."""
    body = forge.manifest_of(path)
    found = {}  # id: vector and label, of the live entries in these buckets
    for record in body["segments"]:
        arrays = forge.arrays_of(path, record)
        live = _live(path, record, len(arrays["ids"]))
        of_entry = np.repeat(arrays["buckets"], np.diff(arrays["offsets"]))
        for entry in np.flatnonzero(live & np.isin(of_entry, buckets[0])).tolist():
            label = int(arrays["labels"][entry]) if "labels" in arrays else -1
            found[int(arrays["ids"][entry])] = (arrays["vectors"][entry].astype(np.float64), label)
    metrics = ["euclidean", "inner_product"] + ["cosine"] * bool(index.unit_length)
    n = len(found) + 2
    for metric in metrics:
        result = index.search(
            queries, bucket_ids=buckets, n_neighbors=n, fill="none", metric=metric, threads=1
        )
        few = index.search(
            queries, bucket_ids=buckets, n_neighbors=3, fill="none", metric=metric, threads=1
        )
        if not np.array_equal(few.ids, result.ids[:, :3]):
            raise WrongAnswerError(f"{metric}: the best three are not the first three")
        for q, query in enumerate(queries.astype(np.float64)):
            ids = result.ids[q][result.ids[q] >= 0].tolist()
            if sorted(ids) != sorted(found) or result.candidates[q] != len(found):
                raise WrongAnswerError(f"{metric}: found {sorted(ids)}, there are {sorted(found)}")
            for item, distance in zip(ids, result.distances[q].tolist(), strict=False):
                vector = found[item][0]
                if metric == "euclidean":
                    exact = float(np.sqrt(((vector - query) ** 2).sum()))
                elif metric == "inner_product":
                    exact = float(vector @ query)
                else:
                    exact = 1.0 - float(vector @ query) / float(np.sqrt(query @ query))
                scale = 1.0 + abs(exact) + float(np.abs(vector) @ np.abs(query))
                if abs(exact) < 3e38 and not abs(distance - exact) <= 1e-4 * scale:
                    raise WrongAnswerError(
                        f"{metric}: distance of {item} is {distance}, must be {exact}"
                    )
            order = result.distances[q][: len(ids)]
            ascending = -order if metric == "inner_product" else order
            if (np.diff(ascending) < 0).any():
                raise WrongAnswerError(f"{metric}: not in order")
    if index.has_labels and found:
        labels = index.labels_of(list(found)).tolist()
        if labels != [label for _, label in found.values()]:
            raise WrongAnswerError("labels differ")


# format: golden files, mutator, reader, share of all cases
FORMATS = {
    "index": (golden_index, mutate_index, read_index, 0.25),
    "manifest": (golden_index, mutate_manifest, read_index, 0.15),
}
