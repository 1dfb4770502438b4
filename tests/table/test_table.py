"""HashTable: learn, hold, search, change, store, as one object."""

import copy
import json
import pickle
import threading

import numpy as np
import pytest
from table_factories import make_items

from hashcade import HashTable, IndexLockedError, NotFittedError, StorageError
from hashcade._io import writer_lock
from hashcade.evaluate import exact_search

SETTINGS = {"width": 4, "steps": 60, "hidden_size": 16, "verbose": False}


@pytest.fixture
def table(hasher, items):
    """A filled table whose model is shared; changes stay in the test."""
    table = HashTable.from_parts(hasher)
    table.add(items[0], labels=items[1])
    return table


# -- learning and searching ------------------------------------------------------------------


def test_learn_fill_search_in_two_calls(items):
    X, y = items
    table = HashTable(**SETTINGS).fit(X, y)
    queries, labels = make_items(60, seed=1)
    matches = table.search(queries, 5)
    assert (matches.labels == labels[:, None]).mean() > 0.95
    assert (matches.candidates < len(X) / 2).all()
    assert len(table) == len(X)


def test_it_is_the_same_as_the_parts(table, hasher, items):
    queries, _ = make_items(30, seed=1)
    encoded = hasher.encode(queries)
    direct = table.index.search(encoded.vectors, **encoded.where_to_look(), n_neighbors=7)
    matches = table.search(queries, 7)
    assert np.array_equal(matches.ids, direct.ids)
    assert np.array_equal(matches.distances, direct.distances)
    assert np.array_equal(matches.candidates, direct.candidates)


def test_probing_every_bucket_is_exact_search(table, hasher, items):
    queries, _ = make_items(30, seed=1)
    exact = exact_search(hasher.embed(queries), hasher.embed(items[0]), n_neighbors=10)
    assert np.array_equal(table.search(queries, n_probe=16).ids, exact.ids)


def test_more_probes_never_find_less(table, items):
    queries, _ = make_items(50, seed=2, noise=1.5)
    nearest = [table.search(queries, 1, n_probe=n).distances[:, 0] for n in (2, 4, 16)]
    assert (nearest[0] >= nearest[1]).all()
    assert (nearest[1] >= nearest[2]).all()


def test_matches_can_be_indexed_and_iterated(table, items):
    matches = table.search(items[0][:3], 4)
    assert len(matches) == 3
    assert [len(row) for row in matches] == [4, 4, 4]
    first = matches[0][0]
    assert (first.id, first.label, first.name) == (0, items[1][0], None)
    assert first.distance < 1e-6  # its vector was computed in a larger batch
    assert [match.id for match in matches[-1]] == matches.ids[-1].tolist()
    with pytest.raises(IndexError):
        matches[3]


def test_results_can_be_pickled_and_copied(table, items):
    matches = table.search(items[0][:3], 4)
    for other in (pickle.loads(pickle.dumps(matches)), copy.deepcopy(matches)):
        assert other[0] == matches[0]
        for name in ("ids", "distances", "labels", "names", "payload", "candidates", "truncated"):
            assert np.array_equal(getattr(other, name), getattr(matches, name)), name


def test_rows_without_enough_results_are_short(hasher, items):
    table = HashTable.from_parts(hasher)
    table.add(items[0][:2])
    matches = table.search(items[0][:1], 5)
    assert matches.ids[0].tolist()[2:] == [-1, -1, -1]
    assert len(matches[0]) == 2
    assert matches.labels[0].tolist() == [None] * 5


def test_one_query_alone(table, items):
    assert table.search(items[0][0], 3).ids.tolist() == table.search(items[0][:1], 3).ids.tolist()


def test_lists_and_tensors_are_taken(table, items):
    import torch

    expected = table.search(items[0][:2]).ids.tolist()
    assert table.search(items[0][:2].tolist()).ids.tolist() == expected
    assert table.search(torch.from_numpy(items[0][:2])).ids.tolist() == expected


def test_what_encode_made_can_be_searched(table, items):
    encoded = table.encode(items[0][:5])
    assert np.array_equal(table.search(encoded).ids, table.search(items[0][:5]).ids)


def test_the_network_runs_once_per_search(table, items, monkeypatch):
    calls = []
    outputs = table.hasher.encoder.outputs

    def recording(items, *args, **options):
        calls.append(len(items))
        return outputs(items, *args, **options)

    monkeypatch.setattr(table.hasher.encoder, "outputs", recording)
    table.search(items[0][:5], n_probe=2)
    assert calls == [5]


def test_options_of_a_search(table, items):
    X = items[0]
    assert (table.search(X[:3], 1, exclude_self=True).ids[:, 0] != np.arange(3)).all()
    assert set(table.search(X[:1], 3, filter_ids=[5, 6, 7]).ids[0]) == {5, 6, 7}
    cut = table.search(X[:1], 3, max_candidates=2)
    assert (cut.candidates[0], cut.truncated[0]) == (2, True)
    alone = table.search(X[:1], len(X), fill=False)
    assert len(alone[0]) == alone.candidates[0] < len(X)
    assert len(table.search(X[:1], len(X), fill=True)[0]) == len(X)


def test_inner_products(hasher, items):
    table = HashTable.from_parts(hasher, metric="inner_product")
    table.add(items[0])
    matches = table.search(items[0][:4], 5, n_probe=16)
    vectors = hasher.embed(items[0]).astype(np.float64)
    products = vectors[:4] @ vectors.T
    assert np.allclose(matches.distances, -np.sort(-products, axis=1)[:, :5], rtol=1e-5)


def test_codes_change_nothing_and_float16_is_kept(items, tmp_path):
    X, y = items
    settings = {"width": 4, "steps": 20, "random_state": 0}
    plain = HashTable(**settings).fit(X, y)
    coded = HashTable(**settings, first_pass="int8").fit(X, y)
    one, other = (table.search(X, 5) for table in (plain, coded))
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.distances, other.distances)
    halved = HashTable(**settings, vectors="float16", first_pass="int8").fit(X, y)
    halved.save(tmp_path / "table")
    index = HashTable.load(tmp_path / "table").index
    assert (index.dtype, index.first_pass) == ("float16", "int8")
    with pytest.raises(ValueError, match="float16 is not for vectors of unit length"):
        HashTable(metric="cosine", vectors="float16")


# -- labels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["str", "int", "far apart"])
def test_labels_come_back_as_they_were_given(items, kind):
    X, y = items
    numbers = np.unique(y, return_inverse=True)[1]
    labels = {"str": y, "int": numbers, "far apart": numbers * 10**12 - 5}[kind]
    table = HashTable(**SETTINGS).fit(X, labels)
    matches = table.search(X[:20], 1)
    assert matches.labels[:, 0].tolist() == labels[:20].tolist()
    assert type(matches.labels[0, 0]) in (int, str)


def test_items_without_a_label_are_not_learned_from_but_found(items):
    X, y = items
    some = y.astype(object)
    some[::4] = None
    table = HashTable(**SETTINGS).fit(X, some)
    assert set(table.catalog.classes) == set(y)
    assert len(table) == len(X)
    matches = table.search(X[:8], 1)
    assert matches.labels[:, 0].tolist() == some[:8].tolist()


def test_without_labels_clusters_take_the_place_of_classes(items):
    table = HashTable(**SETTINGS).fit(items[0])
    matches = table.search(items[0][:10], 1)
    assert matches.ids[:, 0].tolist() == list(range(10))
    assert matches.labels[:, 0].tolist() == [None] * 10
    assert table.catalog.classes == []


def test_later_items_may_lack_labels_or_bring_new_ones(table, items):
    with pytest.raises(
        ValueError, match="labels has 'gnu', which the table does not have"
    ) as caught:
        table.add(items[0][:3], labels=["ant", None, "gnu"])
    assert "new_labels=True" in caught.value.hint
    new = table.add(items[0][:3], labels=["ant", None, "gnu"], new_labels=True)
    assert [table[item].label for item in new] == ["ant", None, "gnu"]
    bare = table.add(items[0][:2])
    assert [table[item].label for item in bare] == [None, None]
    assert table.stats()["classes"]["gnu"]["n_entries"] == 1


def test_integers_and_strings_do_not_mix_in_y(items):
    labels = items[1].astype(object)
    labels[0] = 7
    with pytest.raises(ValueError, match="y mixes integers and strings"):
        HashTable(**SETTINGS).fit(items[0], labels)


# -- changes -----------------------------------------------------------------------------------


def test_add_gives_ids(table, items):
    n = len(table)
    assert table.add(items[0][:2]).tolist() == [n, n + 1]
    assert table.add(items[0][:1], ids=[1000]).tolist() == [1000]
    assert 1000 in table
    assert n + 2 not in table


def test_remove(table, items):
    table.remove([3, 5])
    assert 3 not in table
    assert not {3, 5} & set(table.search(items[0][:10], 20).ids.ravel().tolist())
    with pytest.raises(ValueError, match="3"):
        table.remove([4, 3])
    assert 4 in table  # nothing was removed


def test_upsert_replaces_and_inserts(table, items):
    X, y = items
    other = int(np.flatnonzero(y != y[0])[0])
    table.upsert([0, 5000], X[[other, 0]], labels=["bee", None], names=["zero.jpg", None])
    assert np.allclose(table[0].vector, table.hasher.embed(X[other : other + 1]), atol=1e-6)
    assert (table[0].label, table[0].name) == ("bee", "zero.jpg")
    assert (table[5000].label, table[5000].name) == (None, None)
    assert len(table) == len(X) + 1


def test_a_bad_change_changes_nothing(table, items):
    before = (len(table), list(table.catalog.classes))
    X = items[0]
    with pytest.raises(ValueError, match="features"):
        table.add(np.zeros((1, 9)))
    with pytest.raises(ValueError, match="already"):
        table.add(X[:1], ids=[0], labels=["gnu"], new_labels=True)
    with pytest.raises(ValueError, match="NaN"):
        table.add(np.full((1, 8), np.nan))
    with pytest.raises(ValueError, match="labels"):
        table.add(X[:2], labels=["ant"])
    with pytest.raises(ValueError, match="names has 1 entries"):
        table.add(X[:2], names=["one"])
    assert (len(table), table.catalog.classes) == before


def test_a_label_of_a_change_that_failed_is_forgotten(table, items):
    with pytest.raises(ValueError, match="already"):
        table.add(items[0][:1], ids=[0], labels=["gnu"], new_labels=True)
    [new] = table.add(items[0][:1], labels=["yak"], new_labels=True)
    assert table[new].label == "yak"
    assert set(table.search(items[0][0], 2).labels[0].tolist()) == {items[1][0], "yak"}


def test_labels_are_those_of_the_state_that_was_searched(table, items):
    matches = table.search(items[0][:3], 1)
    table.upsert([0], items[0][:1], labels=["gnu"], new_labels=True)
    table.remove([1])
    assert matches.labels[:, 0].tolist() == items[1][:3].tolist()
    assert table.search(items[0][:1], 1).labels.tolist() == [["gnu"]]


def test_a_failed_fit_leaves_the_table_as_it_was(items):
    table = HashTable(**SETTINGS).fit(*items)
    before = table.search(items[0][:5]).ids
    with pytest.raises(ValueError, match="one class"):
        table.fit(items[0], ["same"] * len(items[0]))
    with pytest.raises(ValueError, match="ids"):
        table.fit(items[0], items[1], ids=[0] * len(items[0]))
    assert np.array_equal(table.search(items[0][:5]).ids, before)


def test_searches_beside_changes_see_whole_states(table, items):
    X = items[0]
    errors = []

    def search():
        for _ in range(50):
            matches = table.search(X[:4], 3)
            if not (matches.distances[:, 0] < 1e-6).all():  # computed in another batch
                errors.append(matches)

    readers = [threading.Thread(target=search) for _ in range(2)]
    for reader in readers:
        reader.start()
    for round_ in range(20):
        table.upsert(np.arange(4), X[:4], labels=items[1][:4], payload=[{"round": round_}] * 4)
    for reader in readers:
        reader.join()
    assert errors == []


# -- looking into it ---------------------------------------------------------------------------


def test_an_item(table, items):
    item = table[7]
    assert (item.id, item.label, item.name) == (7, items[1][7], None)
    encoded = table.encode(items[0][7])
    assert np.allclose(item.vector, encoded.vectors[0], atol=1e-6)
    assert item.bucket_ids == encoded.bucket_ids[0].tolist()
    with pytest.raises(KeyError, match="9999"):
        table[9999]


def test_explain_says_why(table, items):
    explained = table.explain(items[0][0], n_neighbors=3)
    assert [result["id"] for result in explained["results"]] == table.search(items[0][0], 3).ids[
        0
    ].tolist()
    assert explained["results"][0]["label"] == items[1][0]
    assert items[1][0] in explained["buckets"][0]["classes"]
    json.dumps(explained)
    with pytest.raises(ValueError, match="must be one"):
        table.explain(items[0][:2])


def test_stats_speak_of_labels(table, items):
    stats = table.stats()
    assert stats["n_items"] == len(items[0])
    assert set(stats["classes"]) == set(items[1])
    json.dumps(stats)


def test_evaluate(table, items):
    queries, labels = make_items(100, seed=3)
    evaluation = table.evaluate(queries, labels, n_neighbors=(1, 4))
    matches = table.search(queries, 4)
    correct = matches.labels == labels[:, None]
    assert evaluation.precision[1] == pytest.approx(100 * correct[:, 0].mean())
    assert evaluation.precision[4] == pytest.approx(100 * correct.mean())
    with pytest.raises(ValueError, match="y has missing labels"):
        table.evaluate(queries[:2], ["ant", None])


def test_a_label_that_only_queries_have_is_never_right(table, items):
    classes = list(table.catalog.classes)
    assert table.evaluate(items[0][:5], ["yak"] * 5, n_neighbors=1).precision[1] == 0.0
    assert table.catalog.classes == classes


def test_repr_and_empty_tables(hasher, items):
    table = HashTable.from_parts(hasher)
    assert len(table) == 0
    assert 0 not in table
    assert "empty" in repr(table)
    with pytest.raises(NotFittedError, match="empty"):
        table.search(items[0][:1])
    with pytest.raises(NotFittedError):
        HashTable(**SETTINGS).add(items[0])
    with pytest.raises(ValueError, match="metric='cosmic' must be one of"):
        HashTable(metric="cosmic")
    with pytest.raises(TypeError, match="widht"):
        HashTable(widht=4)


# -- files -------------------------------------------------------------------------------------


def test_save_and_load(table, items, tmp_path):
    payload = [{"text": "ä", "price": 1.5}, None]
    names = ["a.jpg", "b.jpg"]
    table.add(items[0][:2], labels=["gnu", None], names=names, payload=payload, new_labels=True)
    before = table.search(items[0][:20], 5, n_probe=2)
    table.save(tmp_path / "a.table")
    loaded = HashTable.load(tmp_path / "a.table")
    after = loaded.search(items[0][:20], 5, n_probe=2)
    for name in ("ids", "distances", "labels", "names", "payload", "candidates"):
        assert np.array_equal(getattr(before, name), getattr(after, name)), name
    assert loaded[len(items[0])].payload == payload[0]
    loaded.close()
    table.close()
    files = sorted(path.name.partition("-")[0] for path in (tmp_path / "a.table").iterdir())
    assert files == ["index", "items.db", "model", "payload"]


def test_saving_back_writes_only_what_changed(table, items, tmp_path):
    path = tmp_path / "a.table"
    table.save(path)
    files = {file: file.stat().st_mtime_ns for file in (path / "index").glob("segment-*")}
    model = (path / "model" / "model.safetensors").stat().st_ino
    table.add(items[0][:1], labels=["ant"])
    table.save(path)
    assert (path / "model" / "model.safetensors").stat().st_ino == model
    assert all(file.stat().st_mtime_ns == time for file, time in files.items())
    assert HashTable.load(path)[len(items[0])].label == "ant"


def test_a_loaded_table_can_be_changed_and_saved_elsewhere(table, items, tmp_path):
    table.save(tmp_path / "a")
    loaded = HashTable.load(tmp_path / "a")
    loaded.remove([0])
    loaded.save(tmp_path / "b")
    assert 0 in HashTable.load(tmp_path / "a")
    assert 0 not in HashTable.load(tmp_path / "b")
    loaded.remove([1])
    loaded.save(tmp_path / "b")  # it lives there now
    assert 1 not in HashTable.load(tmp_path / "b")


def test_another_table_is_replaced_as_a_whole(table, hasher, items, tmp_path):
    table.save(tmp_path / "a")
    small = HashTable.from_parts(hasher)
    small.add(items[0][:3])
    small.save(tmp_path / "a")
    assert len(HashTable.load(tmp_path / "a")) == 3


def test_two_writers_do_not_overwrite_each_other(table, items, tmp_path):
    table.save(tmp_path / "a")
    one, two = HashTable.load(tmp_path / "a"), HashTable.load(tmp_path / "a")
    one.remove([0])
    with pytest.raises(IndexLockedError, match="another writer"):
        two.remove([1])
    assert 0 in two
    one.save(tmp_path / "a")
    with pytest.raises(StorageError, match="changed since it was loaded: load it again"):
        two.remove([1])
    assert 1 in two
    assert 0 not in HashTable.load(tmp_path / "a")
    with pytest.raises(StorageError, match="changed since it was loaded"):
        table.save(tmp_path / "a")
    third = HashTable.load(tmp_path / "a")
    with writer_lock(tmp_path / "a" / "index"), pytest.raises(IndexLockedError):
        third.save(tmp_path / "a")


def test_nothing_foreign_is_overwritten(table, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").touch()
    with pytest.raises(StorageError, match="is not a hashcade table") as caught:
        table.save(tmp_path / "photos")
    assert caught.value.hint
    assert [file.name for file in (tmp_path / "photos").iterdir()] == ["me.jpg"]
    (tmp_path / "empty").mkdir()
    table.save(tmp_path / "empty")


def test_a_failed_save_leaves_the_old_table(table, hasher, items, tmp_path, monkeypatch):
    table.save(tmp_path / "a")
    other = HashTable.from_parts(hasher)
    other.add(items[0][:3])

    def fail(self, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(hasher), "save", fail)
    with pytest.raises(StorageError, match="No space left") as caught:
        other.save(tmp_path / "a")
    assert "space" in caught.value.hint
    assert len(HashTable.load(tmp_path / "a")) == len(items[0])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_is_not_a_table_is_an_error_with_a_way_out(tmp_path):
    with pytest.raises(StorageError, match="is not a hashcade table") as caught:
        HashTable.load(tmp_path)
    assert "hashcade fit" in caught.value.hint


def test_a_table_without_a_model_is_searched_through_its_index(table, items, tmp_path):
    bare = HashTable.from_parts(None, table.index, table.catalog)
    bare.save(tmp_path / "bare")
    bare = HashTable.load(tmp_path / "bare")
    with pytest.raises(NotFittedError, match="has no model"):
        bare.search(items[0][:1])
    encoded = table.encode(items[0][:2])
    result = bare.index.search(encoded.vectors, bucket_ids=encoded.bucket_ids, n_neighbors=3)
    assert bare.matches(result).labels.tolist() == table.search(encoded, 3).labels.tolist()
