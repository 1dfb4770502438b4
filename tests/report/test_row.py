import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashcade.errors import DataError
from hashcade.report import ResultRow, RowKey

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
    figures=st.dictionaries(NAMES, st.floats(-1e9, 1e9), max_size=3),
)
def test_a_row_comes_back_from_its_text(method, seed, settings, figures):
    key = RowKey(experiment="cifar100", preset="cpu", method=method, loss="npairs", sparsity=1,
                 database="test", seed=seed)  # fmt: skip
    row = ResultRow(key=key, settings=settings, figures=figures, seconds={"train": 1.5})
    assert ResultRow.from_json(row.to_json(), "here") == row


def test_the_fingerprint_sees_values_and_not_their_order(make_row):
    key = make_row().key

    def of(settings):
        return ResultRow(key=key, settings=settings, figures={}).fingerprint

    assert of({"a": 1, "b": [1, 2]}) == of({"b": [1, 2], "a": 1})
    assert of({"a": 1}) != of({"a": 2})
    assert of({"a": 1}) != of({"a": 1.5})


def test_file_names_tell_rows_apart(make_row):
    rows = [
        make_row(method, loss=loss, sparsity=k, database=d, variant=v, seed=s)
        for method in ("ours", "ours+", "ours-r")
        for loss in ("npairs", "triplet")
        for k in (0, 1)
        for d in ("test", "train")
        for v in ("", "n_probe=4", "alpha=0.5")
        for s in (0, 1)
    ]
    assert len({row.key.file_name for row in rows}) == len(rows)
    assert (
        make_row("ours+", variant="a/b c").key.file_name == "oursplus-npairs-k1-test-a_b_c-s0.json"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "format version 2, must be 1"),
        ({"settings": {"steps": 4}}, "fingerprint"),
        ({"figures": {"pr_1": float("nan")}}, "pr_1 must be finite"),
        ({"figures": None}, "no stored result"),
        ({"method": ...}, "no stored result: KeyError"),
    ],
)
def test_what_was_changed_by_hand_is_refused(make_row, change, message):
    content = {**json.loads(make_row(pr_1=50.0).to_json()), **change}
    content = {name: value for name, value in content.items() if value is not ...}
    with pytest.raises(DataError, match=message):
        ResultRow.from_json(json.dumps(content), "row.json")


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '"row"'])
def test_what_is_no_row_is_refused(text):
    with pytest.raises(DataError, match=r"row\.json is no stored result"):
        ResultRow.from_json(text, "row.json")
