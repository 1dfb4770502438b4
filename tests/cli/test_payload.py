"""Columns of a Parquet file that a table keeps: ids and payload."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from cli_factories import make_embeddings

from hashcade import HashTable
from hashcade.cli.app import make_app, run

KEEP = ["--ids", "sku", "--payload", "text, price"]


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """Items with ids of text and several columns, more of them, and a table of the first."""
    folder = tmp_path_factory.mktemp("shop")
    X, y = make_embeddings(n=310)
    n = len(X)
    columns = {
        "embedding": list(X),
        "label": y,
        "sku": [f"s-{row}" for row in range(n)],
        "text": [f"item\n {row}" for row in range(n)],
        "price": [None if row == 1 else row / 2 for row in range(n)],
        "tags": [["new", "red"]] * n,
        "raw": [b"\xff"] * n,
    }
    rows = pyarrow.table(columns)
    pyarrow.parquet.write_table(rows[:300], folder / "shop.parquet")
    pyarrow.parquet.write_table(rows[300:], folder / "more.parquet")
    pyarrow.parquet.write_table(rows.select(["embedding"])[:1], folder / "query.parquet")
    table = folder / "table"
    short = ["--width", "4", "--steps", "60", "--quiet"]
    data = str(folder / "shop.parquet")
    assert run(make_app(), ["fit", data, "-o", str(table), *KEEP, *short]) == 0
    return SimpleNamespace(folder=folder, table=table, X=X, y=y)


@pytest.fixture
def places(shop, cwd):
    """The files of the shop in the working directory."""
    shutil.copytree(shop.folder, cwd, dirs_exist_ok=True)
    return cwd


def test_columns_that_are_not_kept_are_named(places, command):
    line = "not kept: {}; --ids and --payload keep columns with the items"
    built = command("build", "table", "shop.parquet", "-o", "new")
    assert line.format("sku, text, price, tags, raw") in built.err.splitlines()
    asked = command("build", "table", "shop.parquet", "-o", "kept", "--payload", "text")
    assert "not kept" not in asked.err
    assert "not kept" not in command("search", "table", "query.parquet").err


def test_fit_keeps_ids_and_columns(shop):
    table = HashTable.load(shop.table)
    assert len(table) == 300
    item = table["s-7"]
    assert item.payload == {"text": "item\n 7", "price": 3.5}
    assert item.label == shop.y[7]
    assert table["s-1"].payload["price"] is None


def test_build_and_add_keep_what_fit_keeps(command, places):
    assert command("build", "table", "shop.parquet", "-o", "built", *KEEP, "--quiet").code == 0
    one, two = HashTable.load("built"), HashTable.load("table")
    assert one.ids().tolist() == two.ids().tolist()
    assert all(one[key].payload == two[key].payload for key in one.ids())
    added = command("add", "built", "more.parquet", *KEEP, "--quiet")
    assert added.out == "added  10 items\ntable  310 items\n"
    table = HashTable.load("built")
    assert table["s-305"].payload == {"text": "item\n 305", "price": 152.5}
    again = command("add", "built", "more.parquet", *KEEP, "--quiet")
    assert again.code == 2
    assert "'s-300'" in again.err
    assert "already in the table" in again.err
    assert len(HashTable.load("built")) == 310
    without = command("add", "table", "more.parquet", "--quiet")
    assert without.code == 2
    assert "ids are missing, this table has ids of text" in without.err


def test_ids_may_be_integers(command, places):
    rows = pyarrow.parquet.read_table("more.parquet")
    rows = rows.append_column("number", pyarrow.array(range(5000, 5010)))
    pyarrow.parquet.write_table(rows, "numbered.parquet")
    keep = ["--ids", "number", "--payload", "tags"]
    assert command("build", "table", "numbered.parquet", "-o", "built", *keep).code == 0
    table = HashTable.load("built")
    assert table.ids().tolist() == list(range(5000, 5010))
    assert table[5003].payload == {"tags": ["new", "red"]}


def test_all_are_the_columns_that_are_not_read_otherwise(command, places):
    rows = pyarrow.parquet.read_table("more.parquet").drop_columns(["raw"])
    pyarrow.parquet.write_table(rows, "plain.parquet")
    keep = ["--ids", "sku", "--payload", "all"]
    assert command("build", "table", "plain.parquet", "-o", "built", *keep).code == 0
    payload = HashTable.load("built")["s-300"].payload
    assert payload == {"text": "item\n 300", "price": 150.0, "tags": ["new", "red"]}


def test_search_shows_ids_and_payload(command, places):
    done = command("search", "table", "query.parquet", "-n", 2, "--quiet")
    head, first, second = (line.split() for line in done.out.splitlines()[1:4])
    assert head == ["#", "id", "label", "distance", "text", "price"]
    assert first[:2] == ["1", "s-0"]
    assert first[-4:] == ["0.0000", "item", "0", "0.0"]
    row = int(second[1].removeprefix("s-"))
    assert second[-3:] == ["item", str(row), "-" if row == 1 else str(row / 2)]
    done = command("search", "table", "query.parquet", "-n", 1, "--json", "--quiet")
    best = json.loads(done.out)["queries"][0]["results"][0]
    assert best["id"] == "s-0"
    assert best["payload"] == {"text": "item\n 0", "price": 0.0}
    where = ["--where", "price>=10", "--where", "price<12"]
    done = command("search", "table", "query.parquet", "--json", "--quiet", *where)
    results = json.loads(done.out)["queries"][0]["results"]
    assert {match["id"] for match in results} == {"s-20", "s-21", "s-22", "s-23"}


def test_items_of_text_ids_leave_themselves_out_and_can_be_removed(command, places):
    done = command("evaluate", "table", "shop.parquet", "--quiet", "-n", 1)
    assert done.code == 0, done.err
    assert "each one is left out of its own results" in done.err
    done = command("evaluate", "table", "more.parquet", "--quiet", "-n", 1)
    assert done.code == 0, done.err
    assert "left out" not in done.err
    assert json.loads(command("remove", "table", "s-1", "s-2", "--json").out)["removed"] == 2
    assert "s-1" not in HashTable.load("table")


def codes_have_no_columns(command):
    command("encode", "table", "more.parquet", "-o", "codes.npz", "--quiet")
    return ["build", "table", "codes.npz", "-o", "new", *KEEP]


def arrays_have_no_columns(command):
    np.save("rows.npy", np.zeros((2, 16), np.float32))
    return ["add", "table", "rows.npy", "--payload", "text"]


MORE = ["build", "table", "more.parquet", "-o", "new"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([*MORE, "--payload", "text,colour"], "looked for colour; name another with payload= (--p"),
        ([*MORE, "--ids", "number"], "looked for number; name another with ids= (--ids)"),
        ([*MORE, "--payload", " ,"], "--payload= , must name columns, or be all"),
        ([*MORE, "--payload", "all"], "'raw' in row 0 is of type bytes, which JSON does not have"),
        ([*MORE, "--ids", "price"], "ids has dtype float64, must be integers"),
        ([*MORE, "--ids", "label"], "more than once"),
        (codes_have_no_columns, "codes.npz has codes, and no columns for --ids or --payload; give"),
        (arrays_have_no_columns, "payload=['text'] is for parquet; rows.npy is of the kind npy"),
    ],
)
def test_mistakes(command, places, arguments, text):
    done = command(*(arguments(command) if callable(arguments) else arguments))
    assert done.code == 2, done.err
    assert text in done.err
    assert not (places / "new").exists()
    assert len(HashTable.load("table")) == 300
