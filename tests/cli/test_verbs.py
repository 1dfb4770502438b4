"""What each verb prints and leaves behind."""

import json
import shutil

import numpy as np
import pytest
from worlds_of_cli import make_photos

from hashcade import Hasher, HashIndex
from hashcade.cli._buckets import labels_of, make_tree
from hashcade.index import read_origin


def test_train_leaves_a_card_with_data_settings_seed_and_figures(command, made, here):
    options = ["--width", 4, "--steps", 20, "--seed", 3, "--set", "rate=0.002", "--json"]
    done = command("train", made.data, "-o", "model", *options, "--quiet")
    assert done.code == 0
    assert done.err == ""
    card = json.loads(done.out)
    assert card == json.loads((here / "model" / "card.json").read_text())
    assert card["data"] == {
        "source": str(made.data), "kind": "embeddings", "item_shape": [16],
        "n_items": 300, "n_classes": 6, "skipped": [],
    }  # fmt: skip
    assert card["seed"] == 3
    assert card["settings"]["rate"] == 0.002
    assert card["settings"]["steps"] == 20
    hasher = Hasher.load(here / "model")
    assert card["figures"] == hasher.validation_
    text = (here / "model" / "README.md").read_text()
    assert "300 embeddings (16), 6 classes" in text
    assert f"| precision@1 | {hasher.validation_['precision_at_1']:.1f} % |" in text
    assert "hashcade build model DATA" in text
    assert sorted(path.name for path in (here / "model").iterdir()) == [
        "README.md", "card.json", "config.json", "model.safetensors",
    ]  # fmt: skip


def test_the_same_seed_gives_the_same_model(command, made, here):
    for name in ("one", "two"):
        command("train", made.data, "-o", name, "--width", 4, "--steps", 5, "--quiet")
    one, two = ((here / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_force_replaces_a_model_and_nothing_else(command, made, here):
    shutil.copytree(made.model, here / "model")
    before = (here / "model" / "config.json").read_bytes()
    options = ["--width", 4, "--steps", 5, "--quiet"]
    assert command("train", made.data, "-o", "model", *options).code == 2
    assert (here / "model" / "config.json").read_bytes() == before
    assert command("train", made.data, "-o", "model", *options, "--force").code == 0
    assert (here / "model" / "config.json").read_bytes() != before
    assert [path.name for path in here.iterdir()] == ["model"]


def test_images_that_cannot_be_read_are_passed_over_on_request(command, here):
    make_photos(here / "photos", per_class=6)
    (here / "photos" / "leaf" / "01.png").write_text("no image")
    options = ["--steps", 2, "--base-steps", 2, "--image-size", "16x24", "--skip-bad", "--json"]
    done = command("train", "photos", "-o", "model", *options)
    assert "passed over: photos/leaf/01.png: not an image" in done.err
    card = json.loads(done.out)
    assert card["data"]["n_items"] == 17
    assert card["data"]["item_shape"] == [16, 24, 3]
    assert len(card["data"]["skipped"]) == 1
    command("build", "model", "photos", "-o", "index", "--skip-bad")
    origin = read_origin(here / "index")
    assert origin.data == here / "photos"
    assert origin.class_names == ("apple", "leaf", "sea")
    assert len(origin.names) == 17
    assert origin.item_name(6) == "leaf/00.jpg"
    assert (origin.data / origin.item_name(16)).is_file()
    assert origin.item_name(17) is None
    assert origin.check_model(here / "model") is None


def test_build_is_what_the_library_builds(made):
    hasher, index = Hasher.load(made.model), HashIndex.load(made.index)
    by_hand = HashIndex.build(hasher.transform(made.X), hasher.embed(made.X), shape=hasher.shape_)
    scores = hasher.scores(made.X[:20])
    one, two = (i.search(made.X[:20], scores=scores, n_neighbors=7) for i in (index, by_hand))
    assert (one.ids == two.ids).all()
    assert (one.distances == two.distances).all()


def test_encode_and_build_are_the_same_as_build(command, made, here, monkeypatch):
    done = command("encode", made.model, made.data, "-o", "codes.npz", "--scores", "--json")
    assert json.loads(done.out)["n_items"] == 300
    codes = np.load("codes.npz", allow_pickle=False)
    hasher = Hasher.load(made.model)
    assert (codes["bucket_ids"] == hasher.transform(made.X)).all()
    assert (codes["scores"] == hasher.scores(made.X)).all()

    def never(*arguments, **options):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("hashcade.cli._model.load_model", never)
    assert command("build", "codes.npz", "-o", "index").code == 0
    origins = [read_origin(place) for place in (here / "index", made.index)]
    assert origins[0].model_fingerprint == origins[1].model_fingerprint
    assert origins[0].class_names == origins[1].class_names
    assert origins[0].model == made.model
    assert HashIndex.load("index").stats() == HashIndex.load(made.index).stats()


def test_search_prints_a_table(command, made, here):
    np.save("query.npy", made.X[:1])
    done = command("search", made.index, "query.npy", "-n", 2)
    lines = done.out.splitlines()
    assert lines[0].startswith("row 0 belongs to bucket ")
    assert lines[1].split() == ["#", "id", "label", "distance"]
    assert lines[2].split()[:2] == ["1", "0"]
    assert lines[2].split()[-1] == "0.0000"
    assert lines[-1].startswith("  looked at ")
    assert " of 300 items" in lines[-1]


def test_search_takes_the_settings_of_the_library(command, made, here):
    np.save("query.npy", made.X[:5])
    hasher, index = Hasher.load(made.model), HashIndex.load(made.index)
    options = {"n_neighbors": 80, "n_probe": 2, "max_candidates": 60, "fill": "none"}
    expected = index.search(made.X[:5], scores=hasher.scores(made.X[:5]), **options)
    flags = ["-n", 80, "--n-probe", 2, "--max-candidates", 60, "--no-fill", "--json"]
    answers = json.loads(command("search", made.index, "query.npy", *flags).out)["queries"]
    for row, answer in enumerate(answers):
        assert answer["candidates"] == expected.candidates[row]
        assert answer["truncated"] == expected.truncated[row]
        ids = [result["id"] for result in answer["results"]]
        assert ids == [i for i in expected.ids[row].tolist() if i >= 0]


def test_search_says_when_nothing_is_there(command, made, here):
    index = HashIndex.load(made.index)
    index.remove(range(300))
    shutil.copytree(made.index, "index")
    index.save(here / "index")
    np.save("query.npy", made.X[0])
    done = command("search", "index", "query.npy", "--model", made.model)
    assert "nothing found" in done.out
    assert "looked at 0 of 0 items" in done.out


def test_inspect_counts_what_is_there(command, made):
    index = HashIndex.load(made.index)
    labels = np.unique(made.y, return_inverse=True)[1]
    tree = make_tree(index)
    assert tree.n_entries == 300
    assert tree.classes == dict(
        sorted(((c, int((labels == c).sum())) for c in range(6)), key=lambda p: (-p[1], p[0]))
    )
    buckets = Hasher.load(made.model).transform(made.X)[:, 0]
    assert tree.n_buckets == len(np.unique(buckets))
    for child in tree.children:
        for leaf in child.children:
            number = leaf.path[0] * 4 + leaf.path[1]
            assert leaf.n_entries == (buckets == number).sum()
            counts = np.bincount(labels[buckets == number])
            assert leaf.purity == counts.max() / counts.sum()
    wanted = [*labels[[3, 299, 0]].tolist(), None]
    assert labels_of(index, np.array([[3, 299, 0, -1]])) == [wanted]
    done = command("inspect", made.index, "--top", 2, "--branches", 1)
    assert f"{tree.n_buckets} of 16 buckets are occupied" in done.out
    assert done.out.count(" more with ") >= 1
    plain = json.loads(command("inspect", made.index, "--json").out)
    assert plain["stats"]["n_items"] == 300
    assert plain["tree"]["n_entries"] == 300
    assert len(plain["largest_buckets"]) == min(10, tree.n_buckets)


def test_inspect_knows_a_model(command, made):
    done = command("inspect", made.model)
    assert "width 4, depth 2, sparsity 1" in done.out
    assert "16 numbers (embeddings)" in done.out
    assert json.loads(command("inspect", made.model, "--json").out)["card"]["seed"] == 0


def test_verify_finds_damage_and_lists_it(command, made, here):
    shutil.copytree(made.index, "index")
    shutil.copytree(made.model, "model")
    assert command("verify", "index", "model").code == 0
    with open("model/model.safetensors", "ab") as file:
        file.write(b"x")
    (here / "index" / "names.json").write_text("[]")  # not part of this index: no names
    done = command("verify", "index", "model", "--json")
    assert done.code == 2
    report = json.loads(done.out)
    assert not report["ok"]
    assert report["problems"]["index"] == []
    assert "is damaged" in report["problems"]["model"][0]


@pytest.mark.parametrize("name", ["origin.json", "names.json"])
def test_verify_reads_the_origin_as_well(command, made, here, name):
    make_photos(here / "photos", per_class=4)
    options = ["--steps", 2, "--base-steps", 2, "--image-size", "8", "--quiet"]
    command("train", "photos", "-o", "model", *options)
    command("build", "model", "photos", "-o", "index", "--quiet")
    assert command("verify", "index").code == 0
    content = (here / "index" / name).read_bytes()
    (here / "index" / name).write_bytes(content[:-3])
    done = command("verify", "index")
    assert done.code == 2
    assert f"{name} is damaged" in done.out


def test_evaluate_is_what_the_library_says(command, made, here):
    from hashcade.evaluate import evaluate_hasher, exact_search, precision_at

    labels = np.unique(made.y, return_inverse=True)[1]
    expected = evaluate_hasher(Hasher.load(made.model), made.X, labels, n_neighbors=(1, 5))
    done = command("evaluate", made.model, made.data, "-n", 5, "-n", 1, "--json")
    found = json.loads(done.out)
    assert found["precision"] == {"1": expected.precision[1], "5": expected.precision[5]}
    assert found["speedup"] == {"1": expected.speedup[1], "5": expected.speedup[5]}
    assert found["same_set"]
    exact = exact_search(made.X, made.X, n_neighbors=5, same_set=True).ids
    assert found["exhaustive_precision"]["5"] == precision_at(exact, labels, labels)
    table = command("evaluate", made.model, made.data, "-n", 5, "--recall").out
    assert table.splitlines()[-1].split()[0] == "5"
    assert "recall %" in table


def test_evaluate_matches_classes_by_their_names(command, made, here):
    """The queries have half of the classes: their numbers differ, their names do not."""
    some = np.isin(made.y, ["kind 1", "kind 4", "kind 5"])
    np.savez("test.npz", X=made.X[some] + 0.001, y=made.y[some])
    done = command("evaluate", made.model, "test.npz", "--database", made.data, "-n", 1, "--json")
    found = json.loads(done.out)
    assert not found["same_set"]
    assert found["n_items"] == 300
    assert found["precision"]["1"] == 100
    np.savez("other.npz", X=made.X[:9], y=np.array(["x", "y", "z"] * 3))
    done = command("evaluate", made.model, "other.npz", "--database", made.data)
    assert done.code == 2
    assert "have no class in common; check --labels" in done.err


def test_search_goes_by_the_code_book_if_there_is_one(command, made, here):
    options = ["--width", 4, "--steps", 20, "--set", "assignment=codebook", "--set"]
    command("train", made.data, "-o", "model", *options, "joint_steps=5", "--quiet")
    command("build", "model", made.data, "-o", "index", "--quiet")
    np.save("query.npy", made.X[:9])
    hasher, index = Hasher.load("model"), HashIndex.load("index")
    buckets = hasher.transform(made.X[:9])
    expected = index.search(made.X[:9], bucket_ids=buckets, n_neighbors=10)
    answers = json.loads(command("search", "index", "query.npy", "--json").out)["queries"]
    for row, answer in enumerate(answers):
        assert [result["id"] for result in answer["results"]] == expected.ids[row].tolist()
        assert answer["candidates"] == expected.candidates[row]


def test_serve_takes_the_model_of_the_index_unless_told_not_to(made, command, monkeypatch):
    asked = []
    monkeypatch.setattr("hashcade.serve._run.run", lambda *paths, **more: asked.append(paths))
    monkeypatch.setattr("hashcade.serve._run.log_to_stderr", lambda: None)
    assert command("serve", made.index).code == 0
    assert command("serve", made.index, "--no-model").code == 0
    assert asked == [(made.index, made.model), (made.index, None)]
