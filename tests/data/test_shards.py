import sys

import pytest

from hashcade.data import find_shards
from hashcade.errors import DataError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "part=1").mkdir()
    (tmp_path / "_temporary").mkdir()
    for name in (
        "b.parquet", "a.parquet", "notes.txt", ".hidden.parquet", "part=1/c.pq",
        "_temporary/d.parquet",
    ):  # fmt: skip
        (tmp_path / name).touch()
    return tmp_path


def names_in(folder, shards):
    return [shard.partition(f"{folder}/")[2] for shard in shards]


def test_a_directory_stands_for_its_parquet_files_and_those_below(folder):
    shards = find_shards([str(folder)])

    assert names_in(folder, shards) == ["a.parquet", "b.parquet", "part=1/c.pq"]


def test_patterns_and_files_give_each_file_once_in_order(folder):
    shards = find_shards([str(folder / "*.parquet"), str(folder / "a.parquet")])

    assert names_in(folder, shards) == ["a.parquet", "b.parquet"]


def test_two_stars_look_below(folder):
    assert names_in(folder, find_shards([f"{folder}/**/*.pq"])) == ["part=1/c.pq"]


def test_a_file_with_a_star_in_its_name_is_that_file(folder):
    (folder / "*.parquet").touch()

    assert names_in(folder, find_shards([str(folder / "*.parquet")])) == ["*.parquet"]


@pytest.mark.parametrize("name", ["none.parquet", "none/*.parquet"])
def test_what_is_not_there_is_named(folder, name):
    with pytest.raises(DataError, match=r"none.*(does not exist|stands for no file)"):
        find_shards([str(folder / "a.parquet"), str(folder / name)])


@pytest.mark.parametrize("end", ["", "/*.parquet", "/a.parquet"])
def test_addresses_are_listed_as_paths_are(folder, end):
    pytest.importorskip("fsspec")
    local = names_in(folder, find_shards([f"{folder}{end}"]))

    shards = find_shards([f"file://{folder}{end}"])

    assert names_in(folder, shards) == local
    assert all(shard.startswith("file://") for shard in shards)


def test_an_address_of_an_unknown_kind_is_refused():
    pytest.importorskip("fsspec")
    with pytest.raises(DataError, match="cannot list nowhere://a"):
        find_shards(["nowhere://a"])


def test_addresses_need_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ImportError, match=r"hashcade\[remote\]"):
        find_shards(["s3://bucket/*.parquet"])
