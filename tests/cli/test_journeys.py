"""From a stranger's data to results; once by the installed command in a clean environment."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from cli_factories import make_embeddings, make_query

SHORT = ["--steps", "60", "--width", "4"]


def test_embeddings_in_npy(installed):
    X, y = make_embeddings()
    np.save(installed.cwd / "vectors.npy", X)
    (installed.cwd / "vectors_labels.txt").write_text("\n".join(y) + "\n")
    np.save(installed.cwd / "query.npy", X[7])  # one vector alone, without labels
    fitted = installed("fit", "vectors.npy", "-o", "table", *SHORT)
    assert "300 embeddings (16), 6 classes from vectors.npy" in fitted.stderr
    assert fitted.stdout.startswith("table ")
    found = json.loads(installed("search", "table", "query.npy", "-n", 3, "--json").stdout)
    (answer,) = found["queries"]
    assert answer["results"][0]["id"] == 7
    assert answer["results"][0]["distance"] == pytest.approx(0, abs=1e-5)  # up to rounding
    assert {result["label"] for result in answer["results"]} == {str(y[7])}
    assert answer["candidates"] < 150
    assert installed("verify", "table", "table/model").stdout == "table: ok\ntable/model: ok\n"
    installed("add", "table", "query.npy")
    nearest = json.loads(installed("search", "table", "query.npy", "-n", 2, "--json").stdout)
    assert {result["id"] for result in nearest["queries"][0]["results"]} == {7, 300}
    installed("remove", "table", "7", "300")
    left = json.loads(installed("search", "table", "query.npy", "-n", 2, "--json").stdout)
    assert left["n_items"] == 299
    assert not {result["id"] for result in left["queries"][0]["results"]} & {7, 300}


def test_embeddings_in_parquet(command, cwd):
    X, y = make_embeddings(seed=1)
    table = pyarrow.table({"clip": list(X), "kind": y})
    pyarrow.parquet.write_table(table, cwd / "all.parquet")
    pyarrow.parquet.write_table(table.select(["clip"])[:2], cwd / "queries.parquet")
    columns = ["--items", "clip", "--labels", "kind"]
    assert command("train", "all.parquet", *columns, "-o", "model", *SHORT, "--quiet").code == 0
    small = ["--vectors", "float16", "--first-pass", "int8"]
    built = command("build", "model", "all.parquet", *columns, *small, "-o", "table", "--quiet")
    assert built.code == 0
    done = command("search", "table", "queries.parquet", "--items", "clip", "--quiet")
    assert done.out.count("candidates of 300 items") == 2
    inspected = command("inspect", "table").out
    assert "kind 3" in inspected
    assert "└─" in inspected


def test_a_folder_without_classes_can_be_searched_in(command, cwd):
    """Labels are needed to learn, not to build: here the model comes from labelled arrays."""
    rng = np.random.default_rng(0)
    y = np.arange(24) % 2
    images = np.where(y[:, None, None, None], 200, 40) + rng.integers(0, 40, (24, 32, 32, 3))
    np.savez(cwd / "arrays.npz", X=images.astype(np.uint8), y=y)
    short = ["--from-scratch", "--steps", 5, "--base-steps", 5, "--quiet"]
    command("train", "arrays.npz", "-o", "model", *short)
    (cwd / "flat").mkdir()
    for number, color in enumerate(["apple", "leaf", "sea"]):
        make_query(cwd / "flat" / f"{number}.png", color)
    command("build", "model", "flat", "-o", "table")
    found = json.loads(command("search", "table", "flat/1.png", "-n", 1, "--json").out)
    answer = found["queries"][0]
    assert answer["query"] == "1.png"
    assert answer["results"][0]["name"] == "1.png"
    assert answer["results"][0]["label"] is None
