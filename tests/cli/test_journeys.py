"""The installed command, in a clean environment, from a stranger's data to an answer."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
from worlds_of_cli import make_embeddings, make_query

SHORT = ["--steps", "60", "--width", "4"]


def test_embeddings_in_npy(installed):
    X, y = make_embeddings()
    np.save(installed.cwd / "vectors.npy", X)
    (installed.cwd / "vectors_labels.txt").write_text("\n".join(y) + "\n")
    np.save(installed.cwd / "query.npy", X[7])  # one vector alone, without labels
    trained = installed("train", "vectors.npy", "-o", "model", *SHORT)
    assert "300 embeddings (16), 6 classes from vectors.npy" in trained.stderr
    assert trained.stdout.startswith("model ")
    installed("build", "model", "vectors.npy", "-o", "index")
    found = json.loads(installed("search", "index", "query.npy", "-n", 3, "--json").stdout)
    (answer,) = found["queries"]
    assert answer["results"][0]["id"] == 7
    assert answer["results"][0]["distance"] == 0
    assert {result["label"] for result in answer["results"]} == {str(y[7])}
    assert answer["candidates"] < 150
    assert installed("verify", "model", "index").stdout == "model: ok\nindex: ok\n"


def test_embeddings_in_parquet(installed):
    X, y = make_embeddings(seed=1)
    table = pyarrow.table({"clip": list(X), "kind": y})
    pyarrow.parquet.write_table(table, installed.cwd / "all.parquet")
    pyarrow.parquet.write_table(table.select(["clip"])[:2], installed.cwd / "asked.parquet")
    columns = ["--items", "clip", "--labels", "kind"]
    installed("train", "all.parquet", *columns, "-o", "model", *SHORT, "--quiet")
    installed("build", "model", "all.parquet", *columns, "-o", "index")
    done = installed("search", "index", "asked.parquet", "--items", "clip")
    assert done.stdout.count("looked at") == 2
    assert done.stderr == ""
    inspected = installed("inspect", "index").stdout
    assert "kind 3" in inspected
    assert "└─" in inspected


def test_a_folder_without_classes_can_be_searched_in(installed):
    """Labels are needed to learn, not to build: here the model comes from labelled arrays."""
    rng = np.random.default_rng(0)
    y = np.arange(24) % 2
    images = np.where(y[:, None, None, None], 200, 40) + rng.integers(0, 40, (24, 32, 32, 3))
    np.savez(installed.cwd / "arrays.npz", X=images.astype(np.uint8), y=y)
    short = ["--steps", 5, "--base-steps", 5, "--quiet"]
    installed("train", "arrays.npz", "-o", "model", *short)
    (installed.cwd / "flat").mkdir()
    for number, colour in enumerate(["apple", "leaf", "sea"]):
        make_query(installed.cwd / "flat" / f"{number}.png", colour)
    installed("build", "model", "flat", "-o", "index")
    answer = json.loads(installed("search", "index", "flat/1.png", "-n", 1, "--json").stdout)[
        "queries"
    ][0]
    assert answer["query"] == "1.png"
    assert answer["results"][0]["name"] == "1.png"
    assert answer["results"][0]["label"] is None
