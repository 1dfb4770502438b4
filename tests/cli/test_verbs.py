"""What each verb prints and leaves behind."""

import json
import shutil

import numpy as np
import pytest
from cli_factories import make_photos

from hashcade import Hasher, HashIndex, HashTable

# -- fit, train, build -----------------------------------------------------------------------------


def test_train_leaves_a_card_with_data_settings_seed_and_metrics(command, sample, cwd):
    options = ["--width", 4, "--steps", 20, "--seed", 3, "--set", "learning_rate=0.002", "--json"]
    done = command("train", sample.data, "-o", "model", *options, "--quiet")
    assert done.code == 0
    assert done.err == ""
    card = json.loads(done.out)
    assert card.pop("output") == "model"
    assert card.pop("warnings") == []
    assert card == json.loads((cwd / "model" / "card.json").read_text())
    assert card["data"] == {
        "source": str(sample.data),
        "summary": f"300 embeddings (16), 6 classes from {sample.data}",
        "item_shape": [16], "n_items": 300, "n_classes": 6, "skipped": [],
    }  # fmt: skip
    assert card["seed"] == 3
    assert card["settings"]["learning_rate"] == 0.002
    assert card["settings"]["steps"] == 20
    hasher = Hasher.load(cwd / "model")
    assert card["metrics"] == hasher.validation_
    text = (cwd / "model" / "README.md").read_text()
    assert "300 embeddings (16), 6 classes" in text
    assert f"| precision_at_1 | {hasher.validation_['precision_at_1']:.1f} |" in text
    assert "| learning_rate | 0.002 |" in text
    assert sorted(path.name for path in (cwd / "model").iterdir()) == [
        "README.md", "card.json", "config.json", "model.safetensors",
    ]  # fmt: skip


def test_the_same_seed_gives_the_same_model(command, sample, cwd):
    for name in ("one", "two"):
        command("train", sample.data, "-o", name, "--width", 4, "--steps", 5, "--quiet")
    one, two = ((cwd / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_fit_is_train_and_build(command, sample, cwd):
    options = ["--width", 4, "--steps", 60, "--quiet"]  # those of the sample
    done = command("fit", sample.data, "-o", "table", *options)
    assert "table       table\ndata        300 items of 6 classes\n" in done.out
    fitted, built = HashTable.load("table"), HashTable.load(sample.table)
    weights = [path / "model" / "model.safetensors" for path in (cwd / "table", sample.table)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    one, two = (table.search(sample.X[:30], 5) for table in (fitted, built))
    assert (one.ids == two.ids).all()
    assert (one.labels == two.labels).all()
    assert set(fitted.catalog.classes) == set(sample.y.tolist())
    assert fitted.catalog.data == sample.data
    for name in ("README.md", "card.json"):  # build copies the card of the model
        assert (cwd / "table" / "model" / name).is_file()
        assert (sample.table / "model" / name).is_file()


def test_fit_learns_without_labels_on_request(command, sample, cwd):
    np.save("alone.npy", sample.X)
    options = ["-o", "table", "--steps", 5, "--quiet"]
    assert command("fit", "alone.npy", *options).code == 2
    assert command("fit", "alone.npy", *options, "--no-labels").code == 0
    table = HashTable.load("table")
    assert len(table) == 300
    assert table.catalog.classes == []


def test_force_replaces_a_model_and_nothing_else(command, sample, cwd):
    shutil.copytree(sample.model, cwd / "model")
    before = (cwd / "model" / "config.json").read_bytes()
    options = ["--width", 4, "--steps", 5, "--quiet"]
    assert command("train", sample.data, "-o", "model", *options).code == 2
    assert (cwd / "model" / "config.json").read_bytes() == before
    assert command("train", sample.data, "-o", "model", *options, "--force").code == 0
    assert (cwd / "model" / "config.json").read_bytes() != before
    assert command("build", sample.model, sample.data, "-o", "model", "--force").code == 2
    assert [path.name for path in cwd.iterdir()] == ["model"]


def test_images_keep_their_names_and_labels(photo_sample):
    card = json.loads((photo_sample.table / "model" / "card.json").read_text())
    assert card["data"]["n_items"] == 17
    assert card["data"]["item_shape"] == [16, 24, 3]
    assert len(card["data"]["skipped"]) == 1
    table = HashTable.load(photo_sample.table)
    assert table.catalog.data == photo_sample.photos
    assert set(table.catalog.classes) == {"apple", "leaf", "sea"}
    assert table[6].name == "leaf/00.jpg"
    assert table[6].label == "leaf"
    assert all((photo_sample.photos / table[item].name).is_file() for item in range(17))


def test_images_that_cannot_be_read_are_skipped_on_request(command, photo_sample, cwd):
    model = photo_sample.table / "model"
    assert command("build", model, photo_sample.photos, "-o", "table").code == 2
    done = command("build", model, photo_sample.photos, "-o", "table", "--skip-bad")
    assert done.code == 0
    assert f"skipped: {photo_sample.photos}/leaf/01.png" in done.err
    assert len(HashTable.load("table")) == 17


def test_build_is_what_the_library_builds(sample):
    hasher, table = Hasher.load(sample.model), HashTable.load(sample.table)
    encoded = hasher.encode(sample.X)
    by_hand = HashIndex.build(encoded.bucket_ids, encoded.vectors, shape=hasher.shape_)
    queries = encoded[:20]
    one = table.search(queries, 7)
    two = by_hand.search(queries.vectors, **queries.where_to_look(), n_neighbors=7)
    assert (one.ids == two.ids).all()
    assert (one.distances == two.distances).all()


def test_encode_and_build_are_the_same_as_build(command, sample, cwd, monkeypatch):
    done = command("encode", sample.model, sample.data, "-o", "codes.npz", "--scores", "--json")
    assert json.loads(done.out)["n_items"] == 300
    codes = np.load("codes.npz", allow_pickle=False)
    encoded = Hasher.load(sample.model).encode(sample.X)
    assert (codes["bucket_ids"] == encoded.bucket_ids).all()
    assert (codes["scores"] == encoded.scores).all()

    def never(*arguments, **options):
        raise AssertionError("a model was loaded")

    with monkeypatch.context() as patch:
        patch.setattr("hashcade.cli.build.load_model", never)
        assert command("build", sample.model, "codes.npz", "-o", "table").code == 0
    one, two = HashTable.load("table"), HashTable.load(sample.table)
    assert one.stats() == two.stats()
    assert one.catalog.data == sample.data
    assert (one.search(sample.X[:9]).ids == two.search(sample.X[:9]).ids).all()


@pytest.mark.parametrize("through", ["data", "codes"])
def test_build_places_items_by_their_labels_or_by_the_network(command, sample, cwd, through):
    hasher = Hasher.load(sample.model)
    wrong = np.roll(sample.y, 1)  # most labels are not what the network says
    np.savez("wrong.npz", X=sample.X, y=wrong)
    source = "wrong.npz"
    if through == "codes":
        assert command("encode", sample.model, "wrong.npz", "-o", "codes.npz").code == 0
        source = "codes.npz"
    by_label = hasher.codebook_[np.searchsorted(hasher.classes_, wrong), 0]
    for place, expected in (("label", by_label), ("network", hasher.transform(sample.X)[:, 0])):
        assert command("build", sample.model, source, "-o", place, "--place", place).code == 0
        table = HashTable.load(place)
        assert table.catalog.place == place
        assert [table[item].bucket_ids[0] for item in range(300)] == expected.tolist()


# -- add, remove -----------------------------------------------------------------------------------


def test_add_and_remove_change_the_table_on_disk(command, sample, cwd):
    shutil.copytree(sample.table, "table")
    np.save("more.npy", sample.X[:3])
    (cwd / "more_labels.txt").write_text("kind 0\nkind 1\nnew\n")
    done = command("add", "table", "more.npy", "--json", "--quiet", "--new-labels")
    assert json.loads(done.out) == {"table": "table", "ids": [300, 301, 302], "n_items": 303}
    table = HashTable.load("table")
    assert table[302].label == "new"
    assert np.allclose(table[300].vector, table.hasher.embed(sample.X[:1]), atol=1e-6)
    assert command("add", "table", "more.npy").out == (
        "added  3 items, ids 303 to 305\ntable  306 items\n"
    )
    assert command("remove", "table", 303, 304, 305).out == (
        "removed  3 items\ntable    303 items\n"
    )
    assert json.loads(command("remove", "table", 0, "--json").out)["n_items"] == 302
    assert 0 not in HashTable.load("table")
    done = command("remove", "table", 1, 9000)
    assert done.code == 2
    assert "9000" in done.err
    assert 1 in HashTable.load("table")
    assert command("verify", "table").code == 0


def test_where_filters_what_is_found_and_what_is_removed(command, sample, cwd):
    shutil.copytree(sample.table, "table")
    np.save("query.npy", sample.X[:1])
    search = ("search", "table", "query.npy", "--json", "--quiet", "-n", "50")
    found = json.loads(command(*search, "--where", "label=kind 1").out)["queries"][0]["results"]
    assert {match["label"] for match in found} == {"kind 1"}
    some = ("--where", "id>=10", "--where", "id<20")
    found = json.loads(command(*search, *some).out)["queries"][0]["results"]
    assert {match["id"] for match in found} == set(range(10, 20))
    assert json.loads(command("remove", "table", *some, "--json").out)["removed"] == 10
    assert 10 not in HashTable.load("table")
    several = command("remove", "table", "--where", "id=[1, 2]", "--json")
    assert json.loads(several.out)["removed"] == 2
    for wrong, text in (
        (["--where", "label"], "must be a field"),
        (["--where", "id<1", "--where", "id<2"], "is given twice"),
        (["--where", "id<1", "3"], "and not both"),
        ([], "give ids of items"),
        (["x"], "'x' is not an id"),
    ):
        done = command("remove", "table", *wrong)
        assert done.code == 2
        assert text in done.err


def test_images_from_another_folder_are_named_by_their_whole_path(command, photo_sample, cwd):
    shutil.copytree(photo_sample.table, "table")
    make_photos(cwd / "more", per_class=1)
    ids = json.loads(command("add", "table", "more", "--json", "--quiet").out)["ids"]
    table = HashTable.load("table")
    assert [table[item].name for item in ids] == [
        str(cwd / "more" / name / "00.jpg") for name in ("apple", "leaf", "sea")
    ]
    assert table[0].name == "apple/00.jpg"


# -- search ----------------------------------------------------------------------------------------


def test_search_prints_a_table(command, sample, cwd):
    np.save("query.npy", sample.X[:1])
    lines = command("search", sample.table, "query.npy", "-n", 2).out.splitlines()
    assert lines[0].startswith("row 0 is in bucket ")
    assert lines[1].split() == ["#", "id", "label", "distance"]
    assert lines[2].split()[:2] == ["1", "0"]
    assert lines[2].split()[-1] == "0.0000"
    assert " candidates of 300 items" in lines[-1]


def test_search_takes_the_settings_of_the_library(command, sample, cwd):
    np.save("query.npy", sample.X[:5])
    options = {"n_probe": 2, "max_candidates": 60, "fill": False}
    expected = HashTable.load(sample.table).search(sample.X[:5], 80, **options)
    flags = ["-n", 80, "--n-probe", 2, "--max-candidates", 60, "--no-fill", "--json"]
    answers = json.loads(command("search", sample.table, "query.npy", *flags).out)["queries"]
    for row, answer in enumerate(answers):
        assert answer["candidates"] == expected.candidates[row]
        assert answer["truncated"] == expected.truncated[row]
        ids = [result["id"] for result in answer["results"]]
        assert ids == [i for i in expected.ids[row].tolist() if i >= 0]


def test_search_prints_the_first_queries_and_says_how_to_get_all(command, sample, cwd):
    np.save("queries.npy", sample.X[:40])
    done = command("search", sample.table, "queries.npy")
    assert done.out.count(" is in bucket ") == 10
    assert done.err == ("hashcade: the first 10 of 40 queries; --show 40 or --json gives all\n")
    assert command("search", sample.table, "queries.npy", "--show", 40).out.count("bucket") == 40
    found = json.loads(command("search", sample.table, "queries.npy", "--json").out)
    assert len(found["queries"]) == 40


def test_search_says_when_the_table_is_empty(command, sample, cwd):
    shutil.copytree(sample.table, "table")
    assert command("remove", "table", *range(300)).code == 0
    np.save("query.npy", sample.X[0])
    done = command("search", "table", "query.npy")
    assert "no results" in done.out
    assert "0 candidates of 0 items" in done.out


# -- evaluate --------------------------------------------------------------------------------------


def test_evaluate_is_what_the_library_says(command, sample):
    from hashcade.evaluate import exact_search, precision_at

    table = HashTable.load(sample.table)
    options = {"n_neighbors": (1, 5), "exclude_self": True, "recall": True}
    expected = table.evaluate(sample.X, sample.y, **options)
    done = command("evaluate", sample.table, sample.data, "-n", 1, "-n", 5, "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["precision"] == {"1": expected.precision[1], "5": expected.precision[5]}
    assert found["speedup"] == {"1": expected.speedup[1], "5": expected.speedup[5]}
    assert found["recall"] == {"1": expected.recall[1], "5": expected.recall[5]}
    vectors = table.hasher.embed(sample.X)
    exact = exact_search(vectors, vectors, n_neighbors=5, same_set=True).ids
    assert found["exhaustive_precision"]["5"] == precision_at(exact, sample.y, sample.y)
    assert found["warnings"] == []
    assert found["milliseconds"].keys() == {"1", "5"}
    text = command("evaluate", sample.table, sample.data, "-n", 5).out
    head, row = text.splitlines()[-2:]
    assert head.split() == [
        "neighbors", "precision", "%", "exhaustive", "%", "recall", "%", "speed-up", "time", "a",
        "query",
    ]  # fmt: skip
    assert (row.split()[0], row.split()[-1]) == ("5", "ms")


def test_evaluate_leaves_queries_out_of_their_own_results(command, sample, cwd):
    """Also if they come in another order; the query itself is never among what it finds."""
    order = np.random.default_rng(0).permutation(300)
    np.savez("turned.npz", X=sample.X[order], y=sample.y[order])
    alone = HashTable.load(sample.table).evaluate(sample.X, sample.y, exclude_self=True)
    for data in (sample.data, "turned.npz"):
        done = command("evaluate", sample.table, data, "--json")
        assert done.err == (
            "queries are items of the table: each one is left out of its own results\n"
        )
        found = json.loads(done.out)
        assert found["same_set"]
        assert found["n_items"] == 299
        assert found["precision"]["10"] == pytest.approx(alone.precision[10])
    np.savez("some.npz", X=np.vstack([sample.X[:30], sample.X[30:60] + 0.05]), y=sample.y[:60])
    done = command("evaluate", sample.table, "some.npz", "--json")
    (line,) = json.loads(done.out)["warnings"]
    assert line.startswith("30 of 60 queries are in the table and find themselves; give queries")


def test_evaluate_searches_in_other_items_by_the_same_model(command, sample, cwd):
    np.savez("parts.npz", train=sample.X[:200], train_labels=sample.y[:200],
             test=sample.X[200:], test_labels=sample.y[200:])  # fmt: skip
    parts = ["parts.npz", "--split", "test", "--database-items", "parts.npz"]
    for place in (sample.model, sample.table):
        done = command("evaluate", place, *parts, "--database-split", "train", "--json")
        found = json.loads(done.out)
        assert (found["n_queries"], found["n_items"], found["same_set"]) == (100, 200, False)
        assert found["precision"]["1"] == 100.0
    done = command("evaluate", sample.model, *parts, "--database-split", "test", "--json")
    assert json.loads(done.out)["same_set"]
    assert "left out of its own results" in done.err


def test_evaluate_matches_classes_by_their_names(command, sample, cwd):
    """The queries have half of the classes: their numbers differ, their names do not."""
    some = np.isin(sample.y, ["kind 1", "kind 4", "kind 5"])
    np.savez("test.npz", X=sample.X[some] + 0.001, y=sample.y[some])
    found = json.loads(command("evaluate", sample.table, "test.npz", "-n", 1, "--json").out)
    assert found["n_items"] == 300
    assert found["precision"]["1"] == 100


# -- inspect, verify -------------------------------------------------------------------------------


def test_inspect_counts_what_is_in_the_table(command, sample):
    buckets = Hasher.load(sample.model).transform(sample.X)[:, 0]
    found = json.loads(command("inspect", sample.table, "--json").out)
    assert found["stats"]["n_items"] == 300
    tree = found["tree"]
    assert tree["n_entries"] == 300
    assert tree["n_buckets"] == len(np.unique(buckets))
    names, counts = np.unique(sample.y, return_counts=True)
    assert tree["classes"] == dict(zip(names.tolist(), counts.tolist(), strict=True))
    for child in tree["children"]:
        for leaf in child["children"]:
            inside = sample.y[buckets == leaf["path"][0] * 4 + leaf["path"][1]]
            names, counts = np.unique(inside, return_counts=True)
            assert leaf["n_entries"] == len(inside)
            assert leaf["classes"] == dict(zip(names.tolist(), counts.tolist(), strict=True))
            assert leaf["purity"] == counts.max() / len(inside)
    sizes = [bucket["n_entries"] for bucket in found["largest_buckets"]]
    assert sizes == sorted(np.unique(buckets, return_counts=True)[1].tolist(), reverse=True)[:10]
    text = command("inspect", sample.table, "--top", 2, "--branches", 1).out
    assert f"{tree['n_buckets']} of 16 are occupied" in text
    assert text.count(" more with ") >= 1


def test_inspect_reads_a_model(command, sample):
    text = command("inspect", sample.model).out
    assert "width 4, depth 2, sparsity 1" in text
    assert "16 numbers (embeddings)" in text
    assert json.loads(command("inspect", sample.model, "--json").out)["card"]["seed"] == 0


def test_verify_lists_what_is_damaged(command, sample, cwd):
    shutil.copytree(sample.table, "table")
    shutil.copytree(sample.model, "model")
    assert command("verify", "table", "model").code == 0
    with open("model/model.safetensors", "ab") as file:
        file.write(b"x")
    done = command("verify", "table", "model", "--json")
    assert done.code == 2
    report = json.loads(done.out)
    assert not report["ok"]
    assert report["problems"]["table"] == []
    assert "is damaged" in report["problems"]["model"][0]


@pytest.mark.parametrize("name", ["items.db", "model/config.json", "index"])
def test_verify_reads_every_part_of_a_table(command, photo_sample, cwd, name):
    shutil.copytree(photo_sample.table, "table")
    damaged = cwd / "table" / name
    if name == "index":
        (damaged,) = damaged.glob("segment-*")
    content = bytearray(damaged.read_bytes())
    content[-3:] = b""
    damaged.write_bytes(content)
    done = command("verify", "table")
    assert done.code == 2
    assert damaged.name in done.out + done.err


# -- serve, warmup, demo ---------------------------------------------------------------------------


def test_serve_hands_its_options_to_the_service(sample, command, monkeypatch, cwd):
    calls = []
    monkeypatch.setattr("hashcade.serve.run", lambda table, **settings: calls.append(settings))
    monkeypatch.setattr("hashcade.serve.log_to_stderr", lambda: None)
    (cwd / "token").write_text("a token of many letters\n")
    options = ["--fold-seconds", 5, "--max-batch", 7, "--token-file", "token", "--no-model"]
    assert command("serve", sample.table).code == 0
    assert command("serve", sample.table, *options).code == 0
    changed = {name for name in calls[0] if calls[0][name] != calls[1][name]}
    assert {"fold_seconds", "max_batch", "token"} < changed
    assert (calls[1]["fold_seconds"], calls[1]["max_batch"]) == (5, 7)
    assert calls[1]["token"] == "a token of many letters"


def test_warmup_says_how_long_it_took(command):
    done = command("warmup")
    assert done.code == 0
    assert done.out.startswith("compiled ")
    assert json.loads(command("warmup", "--json").out)["seconds"] >= 0


def test_a_table_is_read_as_the_library_reads_it(sample):
    assert HashTable.load(sample.table).catalog.data == sample.data
