"""Where items go: to the buckets of their label, or where the network puts them."""

import numpy as np
import pytest
from table_factories import NAMES, make_items

from hashcade import Hasher, HashTable
from hashcade.store import Catalog

X, Y = make_items(noise=2.0)  # classes overlap: the network is often wrong
SETTINGS = {"width": 4, "steps": 20, "hidden_size": 16, "verbose": False}


@pytest.fixture(scope="module", params=["prototype", "codebook"])
def hasher(request):
    hasher = Hasher(**SETTINGS, assignment=request.param).fit(X, Y)
    assert 0.1 < (hasher.transform(X) != of_label(hasher, Y)).mean() < 0.9
    return hasher


def of_label(hasher, labels):
    """The buckets of labels that were learned."""
    return hasher.codebook_[np.searchsorted(hasher.classes_, labels)]


def buckets(table, ids):
    return np.array([table[item].bucket_ids for item in ids])


def table_of(hasher, place):
    return HashTable.from_parts(hasher, catalog=Catalog(place=place))


@pytest.mark.parametrize("assignment", ["prototype", "codebook"])
def test_by_default_a_fitted_table_has_labelled_items_in_the_buckets_of_their_labels(assignment):
    some = Y.astype(object)
    some[::3] = None
    table = HashTable(**SETTINGS, assignment=assignment).fit(X, some)
    known = np.flatnonzero(some != None)  # noqa: E711
    assert np.array_equal(buckets(table, known), of_label(table.hasher, Y[known]))
    others = np.arange(0, len(X), 3)
    assert np.array_equal(buckets(table, others), table.hasher.transform(X[others]))


def test_by_network_labels_are_of_no_consequence(hasher):
    table = table_of(hasher, "network")
    ids = table.add(X, labels=Y)
    assert np.array_equal(buckets(table, ids), hasher.transform(X))
    fitted = HashTable(**SETTINGS, place="network").fit(X, Y)
    assert np.array_equal(buckets(fitted, range(len(X))), fitted.hasher.transform(X))


def test_labels_that_are_missing_or_were_not_learned_leave_it_to_the_network(hasher):
    table = table_of(hasher, "label")
    labels = Y.astype(object)
    labels[::3], labels[1::3] = None, "yak"
    ids = table.add(table.encode(X), labels=labels, new_labels=True)
    found = buckets(table, ids)
    assert np.array_equal(found[2::3], of_label(hasher, Y[2::3]))
    by_network = hasher.transform(X)
    for start in (0, 1):
        assert np.array_equal(found[start::3], by_network[start::3])
    bare = table.add(X[:9])
    assert np.array_equal(buckets(table, bare), by_network[:9])


def test_a_replaced_item_moves_with_its_label(hasher):
    table = table_of(hasher, "label")
    ids = table.add(X[:6], labels=["ant"] * 6)
    labels = ["fox", "fox", "bee", None, "yak", "ant"]
    table.upsert(ids, table.encode(X[:6]), labels=labels, new_labels=True)
    found = buckets(table, ids)
    assert np.array_equal(found[[0, 1, 2, 5]], of_label(hasher, ["fox", "fox", "bee", "ant"]))
    assert np.array_equal(found[3:5], hasher.transform(X[3:5]))


def test_what_was_encoded_goes_to_its_label_too_and_is_not_changed(hasher):
    table = table_of(hasher, "label")
    encoded = table.encode(X[:8])
    before = encoded.bucket_ids.copy()
    ids = table.add(encoded, labels=Y[:8])
    assert np.array_equal(buckets(table, ids), of_label(hasher, Y[:8]))
    assert np.array_equal(encoded.bucket_ids, before)


def test_filling_chunk_by_chunk_is_placing_what_was_encoded(hasher):
    many, labels = make_items(2500, seed=3, noise=2.0)
    labels = labels.astype(object)
    labels[::2] = None
    vectors, placed = hasher.place_items(many, labels)
    expected = hasher.place(hasher.encode(many), labels)
    assert np.array_equal(placed, expected.bucket_ids)
    assert np.allclose(vectors, expected.vectors, atol=1e-6)


def test_paths_and_clusters_have_no_buckets_of_labels():
    by_path = Hasher(**SETTINGS, assignment="path").fit(X, Y)
    of_clusters = Hasher().fit_clusters(X, n_codes=6)
    for hasher, labels in ((by_path, Y), (of_clusters, np.arange(len(X)) % 6)):
        table = table_of(hasher, "label")
        ids = table.add(X, labels=labels, new_labels=True)
        assert np.array_equal(buckets(table, ids), hasher.transform(X))


def test_new_labels_extend_the_model_if_it_has_prototypes(hasher, tmp_path):
    table = table_of(hasher, "label")
    table.add(X, labels=Y)
    with pytest.raises(ValueError, match="labels has 'yak', 'gnu', which the table does not have"):
        table.add(X[:3] + 9, labels=["yak", "gnu", "yak"])
    assert table.hasher is hasher
    ids = table.add(X[:3] + 9, labels=["yak", "gnu", "yak"], new_labels=True)
    assert [table[item].label for item in ids] == ["yak", "gnu", "yak"]
    learned = {"yak", "gnu"} <= set(table.hasher.classes_)
    assert learned == (hasher.assignment == "prototype")
    if learned:
        assert np.array_equal(buckets(table, ids), of_label(table.hasher, ["yak", "gnu", "yak"]))
    assert table.search(X[:1] + 9, 1).labels.tolist() == [["yak"]]
    extended = table.hasher
    with pytest.raises(ValueError, match="already"):
        table.add(X[:1] - 9, labels=["eft"], ids=[0], new_labels=True)
    assert table.hasher is extended  # the model has not learned it either
    table.save(tmp_path / "table")
    table.add(X[:1] - 9, labels=["eft"], new_labels=True)
    table.save(tmp_path / "table")  # in place: with the model, if that has changed
    loaded = HashTable.load(tmp_path / "table")
    assert ("eft" in loaded.hasher.classes_) == learned
    assert loaded.search(X[:1] - 9, 1).labels.tolist() == [["eft"]]


def test_classes_that_came_later_have_buckets_too(hasher):
    if hasher.assignment == "codebook":
        with pytest.raises(ValueError, match="extend needs"):
            hasher.extend(X[:1], ["yak"])
        return
    extended = hasher.extend(X[:5] + 9, ["yak"] * 5)
    table = table_of(extended, "label")
    ids = table.add(X[:3], labels=["yak", "yak", Y[2]])
    assert np.array_equal(buckets(table, ids), of_label(extended, ["yak", "yak", Y[2]]))


def test_integers_are_labels_too():
    numbers = np.searchsorted(NAMES, Y) * 10 - 5
    table = HashTable(**SETTINGS).fit(X, numbers)
    assert np.array_equal(buckets(table, range(len(X))), of_label(table.hasher, numbers))
    ids = table.add(X[:2], labels=[5.0, np.int32(15)])
    assert np.array_equal(buckets(table, ids), of_label(table.hasher, [5, 15]))


def test_a_stored_table_goes_on_placing_as_it_did(hasher, tmp_path):
    for place in ("label", "network"):
        table = table_of(hasher, place)
        table.add(X[:5], labels=Y[:5])
        table.save(tmp_path / place)
        loaded = HashTable.load(tmp_path / place)
        ids = loaded.add(X, labels=Y)
        expected = of_label(hasher, Y) if place == "label" else hasher.transform(X)
        assert np.array_equal(buckets(loaded, ids), expected)


def test_other_places_are_refused():
    with pytest.raises(ValueError, match="place='shelf' must be one of 'label', 'network'"):
        HashTable(place="shelf")
