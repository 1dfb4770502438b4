"""A table from shards is the one that would have been built in memory, and always the same."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from threadpoolctl import threadpool_limits

from hashcade import HashTable
from hashcade.batch import build_table
from hashcade.errors import StorageError
from tests.batch.factories import digest, draw, fit_model, rows, write_shards

SIZES = (2048, 1024, 3072, 700)


def in_memory(model, folder, payload=("price", "text"), ids=None, **settings):
    """The table of the same items, added at once."""
    from hashcade.learn import Hasher

    together = pa.concat_tables([pq.read_table(path) for path in sorted(folder.iterdir())])
    X = np.stack(together["embedding"].to_numpy())
    table = HashTable.from_parts(Hasher.load(model), catalog=_catalog(**settings))
    kept = {} if ids is None else {"ids": together[ids].to_pylist()}
    kept |= {"payload": together.select(payload).to_pylist()} if payload else {}
    table.add(X, labels=together["label"].to_pylist(), new_labels=False, **kept)
    return table


def _catalog(**settings):
    from hashcade.store import Catalog

    classes = [f"class {number}" for number in range(12)]
    return Catalog(classes, **settings)


def assert_same_answers(one, other):
    queries, _ = draw(150, 5)
    searches = [
        {},
        {"n_probe": 3},
        {"max_candidates": 15},
        {"fill": False, "n_neighbors": 40},
        {"where": {"price": {"<": 3}}},
        {"where": {"label": "class 3"}},
        {"where": {"label": None}},
    ]
    for search in searches:
        got, expected = one.search(queries, **search), other.search(queries, **search)
        for name in ("ids", "distances", "labels", "names", "payload", "candidates", "truncated"):
            same = np.array_equal(getattr(got, name), getattr(expected, name))
            assert same, (search, name)


@pytest.mark.parametrize(
    ("settings", "of_table"),
    [
        ({}, {}),
        ({}, {"metric": "cosine"}),
        ({}, {"place": "network"}),
        ({"sparsity": 2}, {}),
        ({"sparsity": 2, "rerank": "given"}, {"metric": "inner_product", "place": "network"}),
    ],
    ids=str,
)
def test_equals_the_table_in_memory(tmp_path, settings, of_table):
    model = fit_model(tmp_path / "model", **settings)
    write_shards(tmp_path / "shards", SIZES)
    path = tmp_path / "built.table"
    found = build_table(
        model, str(tmp_path / "shards"), path, payload=["price", "text"], memory=1 << 24, **of_table
    )
    assert found["n_items"] == sum(SIZES)
    assert not path.with_name("built.table.building").exists()
    with HashTable.load(path) as built:
        built.index.verify()
        built.catalog.verify(built.index)
        reference = in_memory(model, tmp_path / "shards", **of_table)
        assert_same_answers(built, reference)
        assert len(built) == len(reference)
        assert built.index.stats()["n_occupied"] == reference.index.stats()["n_occupied"]
        added = built.add(draw(3, 9)[0])
        assert added.tolist() == [sum(SIZES), sum(SIZES) + 1, sum(SIZES) + 2]


def test_the_same_bytes_for_any_workers_memory_and_threads(tmp_path, model, shards):
    tables = []
    for number, memory in enumerate((1 << 30, 1 << 25, 1 << 24)):
        workers = number + 1
        path = tmp_path / f"{number}.table"
        with threadpool_limits(2):  # of this process, which is the worker if there is one
            build_table(model, str(shards), path, payload="all", workers=workers, memory=memory)
        tables.append(digest(path))
    assert set(tables[0]) == {
        "index/manifest.json", "items.db", "model/config.json", "model/model.safetensors",
        *(name for name in tables[0] if name.startswith(("index/segment-", "payload-"))),
    }  # fmt: skip
    assert all(table == tables[0] for table in tables)


@pytest.mark.parametrize("copies", [100, 2000], ids=["several buckets", "buckets in pieces"])
def test_runs_and_ranges_can_be_cut_anywhere(tmp_path, model, shards, monkeypatch, copies):
    from hashcade.batch import build

    stages = []
    run = build._run

    def spy(pool, tasks, stage, *rest):
        stages.append((stage, len(tasks)))
        return run(pool, tasks, stage, *rest)

    monkeypatch.setattr(build, "_run", spy)
    monkeypatch.setattr(build, "_COPIES_OF_PART", 300)
    monkeypatch.setattr(build, "_COPIES_OF_RANGE", copies)
    build_table(model, str(shards), tmp_path / "small", memory=1 << 24)
    counts = dict(stages)
    assert counts["encoding"] > 5
    assert counts["merging"] > 2
    monkeypatch.undo()
    build_table(model, str(shards), tmp_path / "large")
    assert digest(tmp_path / "small") == digest(tmp_path / "large")


@pytest.mark.parametrize("kind", ["ascending", "shuffled", "text"])
def test_given_ids(tmp_path, model, kind):
    folder = tmp_path / "shards"
    folder.mkdir()
    ids = 3 * np.arange(2500)
    if kind != "ascending":
        np.random.default_rng(0).shuffle(ids)
    given = [f"item {n}" for n in ids] if kind == "text" else ids
    for number, cut in enumerate((slice(0, 1024), slice(1024, 2500))):
        table = rows(cut.stop - cut.start, number, sku=given[cut])
        pq.write_table(table, folder / f"{number}.parquet")
    build_table(model, str(folder), tmp_path / "a", ids="sku", payload="price", memory=1 << 24)
    with HashTable.load(tmp_path / "a") as built:
        built.index.verify()
        built.catalog.verify(built.index)
        assert_same_answers(built, in_memory(model, folder, payload=["price"], ids="sku"))
        assert built[given[7]].payload == {"price": 7}


def test_without_labels_and_payload(tmp_path, model, shards):
    folder = tmp_path / "bare"
    folder.mkdir()
    for path in shards.iterdir():
        pq.write_table(pq.read_table(path, columns=["embedding"]), folder / path.name)
    build_table(model, str(folder / "*.parquet"), tmp_path / "a")
    with HashTable.load(tmp_path / "a") as built:
        built.catalog.verify(built.index)
        assert built.search(draw(1, 3)[0]).labels.tolist() == [[None] * 10]


def test_shards_at_an_address(tmp_path, model, shards):
    fsspec = pytest.importorskip("fsspec")
    for path in shards.iterdir():
        with fsspec.open(f"memory://batch-test/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    build_table(model, "memory://batch-test/*.parquet", tmp_path / "a")
    build_table(model, f"file://{shards}", tmp_path / "b")
    with HashTable.load(tmp_path / "a") as one, HashTable.load(tmp_path / "b") as other:
        queries, _ = draw(20, 5)
        assert np.array_equal(one.search(queries).ids, other.search(queries).ids)


def test_an_existing_table_is_replaced_when_asked(tmp_path, model, shards):
    path = tmp_path / "a"
    build_table(model, str(shards), path)
    before = digest(path)
    with pytest.raises(StorageError, match="exists"):
        build_table(model, str(shards), path)
    build_table(model, str(shards), path, metric="cosine", force=True)
    assert digest(path).keys() != before.keys()
    assert HashTable.load(path).metric == "cosine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(StorageError, match="is not a hashcade table"):
        build_table(model, str(shards), tmp_path / "other", force=True)
