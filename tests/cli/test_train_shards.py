"""Training from many Parquet files."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from cli_factories import make_embeddings

from hashcade import Hasher, HashTable
from hashcade.cli.app import make_app, run
from hashcade.data import stratified_sample

SHORT = ["--width", "4", "--steps", "30", "--quiet", "--json"]


@pytest.fixture
def shards(tmp_path):
    X, y = make_embeddings()
    (tmp_path / "shards").mkdir()
    for number, rows in enumerate(np.array_split(np.arange(len(X)), 3)):
        columns = {"embedding": list(X[rows]), "label": y[rows], "sku": rows}
        path = tmp_path / "shards" / f"{number}.parquet"
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return tmp_path / "shards"


def test_a_model_from_a_sample_of_all_files(shards, tmp_path, capsys):
    command = ["train", f"{shards}/*.parquet", "--sample", "90", "-o", str(tmp_path / "model")]
    assert run(make_app(), [*command, *SHORT]) == 0

    assert json.loads(capsys.readouterr().out)["data"]["n_items"] == 90
    X, y = make_embeddings()
    rows = stratified_sample(y, 90)
    expected = Hasher(width=4, steps=30, verbose=False).fit(X[rows], y[rows])
    model = Hasher.load(tmp_path / "model")
    np.testing.assert_array_equal(model.prototypes_, expected.prototypes_)


def test_a_table_learns_from_a_sample_and_holds_all_items(shards, tmp_path):
    command = ["fit", str(shards), "--sample", "90", "--ids", "sku", "-o", str(tmp_path / "table")]
    assert run(make_app(), [*command, *SHORT]) == 0

    with HashTable.open(tmp_path / "table", read_only=True) as table:
        assert len(table) == 300
        assert table.hasher.config_.stages[0].steps == 30


def test_a_sample_and_no_labels_exclude_each_other(shards, tmp_path, capsys):
    command = ["fit", str(shards), "--sample", "90", "--no-labels", "-o", str(tmp_path / "table")]
    assert run(make_app(), command) == 2
    assert "--no-labels and --sample=90 exclude each other" in capsys.readouterr().err
