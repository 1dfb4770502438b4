import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.rows import ResultRow, RowFile, RowKey, mean_metric, write_whole
from hashcade.errors import DataError, StorageError

NAMES = st.text("abc+-=_. ", max_size=6)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1e9, 1e9) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


@given(
    method=NAMES,
    seed=st.integers(0, 9),
    settings=st.dictionaries(NAMES, PLAIN, max_size=3),
    metrics=st.dictionaries(NAMES, st.floats(-1e9, 1e9), max_size=3),
)
def test_a_row_comes_back_from_its_text(method, seed, settings, metrics):
    key = RowKey(experiment="cifar100", preset="cpu", method=method, loss="npairs", sparsity=1,
                 database="test", seed=seed)  # fmt: skip
    row = ResultRow(key=key, settings=settings, metrics=metrics, seconds={"train": 1.5})
    text = row.to_json()
    assert "\n" not in text
    assert ResultRow.from_json(text, "source") == row


def test_the_fingerprint_sees_values_and_not_their_order(make_row):
    key = make_row().key

    def of(settings):
        return ResultRow(key=key, settings=settings, metrics={}).fingerprint

    assert of({"a": 1, "b": [1, 2]}) == of({"b": [1, 2], "a": 1})
    assert of({"a": 1}) != of({"a": 2})
    assert of({"a": 1}) != of({"a": 1.5})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 1}, "format version 1, must be 2"),
        ({"settings": {"steps": 4}}, "fingerprint"),
        ({"metrics": {"pr_1": float("nan")}}, "pr_1 must be finite"),
        ({"metrics": None}, "not a stored result"),
        ({"method": ...}, "not a stored result: KeyError"),
    ],
)
def test_what_was_changed_by_hand_is_refused(make_row, change, message):
    content = {**json.loads(make_row(pr_1=50.0).to_json()), **change}
    content = {name: value for name, value in content.items() if value is not ...}
    with pytest.raises(DataError, match=message):
        ResultRow.from_json(json.dumps(content), "row.json")


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '"row"'])
def test_other_text_is_refused(text):
    with pytest.raises(DataError, match=r"row\.json is not a stored result"):
        ResultRow.from_json(text, "row.json")


# -- the file --------------------------------------------------------------------------------------


def test_the_last_row_of_a_key_counts(tmp_path, make_row):
    file = RowFile(tmp_path / "new" / "rows.jsonl")
    assert file.rows() == []
    first, other = make_row(seed=1, pr_1=50.0), make_row(seed=0, pr_1=51.0)
    again = make_row(seed=1, settings={"steps": 6}, pr_1=52.0)
    for row in (first, other, again):
        file.append(row)
    assert file.rows() == [other, again]
    assert len(file.path.read_text().splitlines()) == 3


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_an_incomplete_last_line_is_skipped_and_then_replaced(tmp_path, make_row, kept):
    file = RowFile(tmp_path / "rows.jsonl")
    rows = [make_row(seed=seed, pr_1=50.0) for seed in range(3)]
    file.append(rows[0])
    whole = file.path.read_bytes()
    file.append(rows[1])
    torn = file.path.read_bytes()[len(whole) :][:kept]
    file.path.write_bytes(whole + torn)
    assert file.rows() == [rows[0]]
    file.append(rows[2])
    assert file.rows() == [rows[0], rows[2]]


def test_a_damaged_line_is_named(tmp_path, make_row):
    file = RowFile(tmp_path / "rows.jsonl")
    for seed in range(3):
        file.append(make_row(seed=seed, pr_1=50.0))
    lines = file.path.read_text().splitlines(keepends=True)
    file.path.write_text("".join([lines[0], lines[1][:50] + "\n", lines[2]]))
    with pytest.raises(DataError, match=r"rows\.jsonl line 2 is not a stored result"):
        file.rows()


def test_a_full_disk_is_an_error_and_keeps_the_rows(tmp_path, make_row, monkeypatch):
    file = RowFile(tmp_path / "rows.jsonl")
    file.append(make_row(pr_1=50.0))
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(StorageError, match="No space left"):
        file.append(make_row(seed=1, pr_1=51.0))
    assert make_row(pr_1=50.0) in file.rows()
    page = tmp_path / "page.md"
    page.write_text("old")
    with pytest.raises(StorageError, match="No space left"):
        write_whole(page, "new")
    assert page.read_text() == "old"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["page.md", "rows.jsonl"]


def test_the_mean_is_over_the_seeds_of_a_row_of_the_tables(make_row):
    rows = [make_row(seed=0, pr_1=50.0), make_row(seed=1, pr_1=52.0), make_row("vq", pr_1=1.0),
            make_row(variant="n_probe=2", pr_1=90.0), make_row(seed=2, suf=4.0)]  # fmt: skip
    assert mean_metric(rows, "ours", "npairs", 1, "test", "pr_1") == 51.0
    assert mean_metric(rows, "ours", "triplet", 1, "test", "pr_1") is None
