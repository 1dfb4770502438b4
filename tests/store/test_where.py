"""Filters: the same answers as plain Python gives, and no value that does harm."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashcade.store import Catalog

LABELS = ["ant", "bee", None, "cat"]
ROWS = [
    {"n": 1, "t": "a", "b": True, "deep": {"x": {"y": 1.5}}, "list": [1]},
    {"n": 2.5, "t": "b", "b": False, "deep": {"x": 3}},
    {"n": "2.5", "t": None, "b": 1, "o'; DROP TABLE items; --": "here"},
    {"n": True, "t": "A", "b": "true", "list": []},
    {},
    None,
    {"n": -0.0, "t": "ä\U0001f600", "b": None, "n.m": 1},
    {"n": 2**53 + 1, "t": "", "deep": None},
    {"n": 0.1 + 0.2, "t": "2"},
    {"n": 10**30, "t": "10"},
]


def make(ids=None, indexed=()):
    catalog = Catalog(["ant", "bee", "cat"])
    with catalog.change():
        labels = np.array([LABELS[k % 4] for k in range(len(ROWS))], dtype=object)
        names = [None if k % 3 else f"item {k}" for k in range(len(ROWS))]
        codes = catalog.codes(labels, len(ROWS))
        for field in indexed:
            catalog.index_field(field)
        catalog.put(codes, 0, ids=ids, names=names, payload=ROWS)
    return catalog


PLAIN = make()
INDEXED = make(indexed=["n", "t", "b", "deep.x.y", "list", "missing"])


def kind(value):
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "other"


def field_of(row, key):
    if key == "id":
        return row
    if key == "label":
        return LABELS[row % 4]
    if key == "name":
        return None if row % 3 else f"item {row}"
    value = ROWS[row]
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def holds(row, where):
    """The grammar, in plain Python."""

    def compare(left, op, right):
        if op == "in":
            return any(compare(left, "=", value) for value in right)
        if op == "!=":
            return not compare(left, "=", right)
        if kind(left) != kind(right) or kind(left) == "other":
            return False
        return {
            "=": lambda: left == right, "<": lambda: left < right, "<=": lambda: left <= right,
            ">": lambda: left > right, ">=": lambda: left >= right,
        }[op]()  # fmt: skip

    for key, value in where.items():
        if key == "any":
            good = any(holds(row, part) for part in value)
        elif key == "not":
            good = not holds(row, value)
        else:
            tests = value if isinstance(value, dict) else {}
            if not isinstance(value, dict):
                tests = {"in" if isinstance(value, list) else "=": value}
            good = all(compare(field_of(row, key), op, x) for op, x in tests.items())
        if not good:
            return False
    return True


def expected(where):
    return [row for row in range(len(ROWS)) if holds(row, where)]


scalars = st.one_of(
    st.sampled_from(
        [1, 2.5, "2.5", True, False, None, 0, 0.1 + 0.2, 2**53, 10**30, "a", "", "ant"]
    ),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
)
ordered = scalars.filter(lambda value: kind(value) in ("number", "text"))
keys = st.sampled_from(
    ["n", "t", "b", "deep.x.y", "deep.x", "list", "missing", "label", "id", "name"]
)
conditions = st.one_of(
    scalars,
    st.lists(scalars, max_size=4),
    st.fixed_dictionaries({}, optional={"=": scalars, "!=": scalars, "in": st.lists(scalars)}),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("<", "<=", ">", ">="), ordered)),
)
filters = st.recursive(
    st.dictionaries(keys, conditions, max_size=3),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"any": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=6,
)


@given(where=filters)
def test_a_filter_lets_through_what_plain_python_does(where):
    assert PLAIN.where(where).tolist() == expected(where)
    assert INDEXED.where(where).tolist() == expected(where)


@pytest.mark.parametrize(
    "where",
    [
        {"t": "a' OR 1=1 --"},
        {"o'; DROP TABLE items; --": "here"},
        {"t": "\0"},
        {"t": "x" * 100_000},
        {"t": ["%", "_", "?", "'", '"', "\\"]},
        {"n": {"<": "9' OR '1'='1"}},
        {"payload": 1}, {"number": 1}, {"items": 1}, {"rowid": {">": 0}}, {"field_values": None},
        {"$": 1}, {"n[0]": 1}, {"list[0]": 1}, {"*": 1}, {"id": "0 OR 1"},
    ],
)  # fmt: skip
def test_no_value_and_no_name_is_ever_sql(where):
    found = PLAIN.where(where).tolist()
    assert found == expected(where)
    assert len(PLAIN.where()) == len(ROWS)


@pytest.mark.parametrize(
    ("where", "match"),
    [
        ("label = 1", "must be a dict"),
        ([], "must be a dict"),
        ({1: 2}, "must be the name of a field"),
        ({"n": {"~": 1}}, r"operator '~' \(allowed: =, !=, <, <=, >, >=, in\)"),
        ({"n": {"<": None}}, "must be a number or text"),
        ({"n": {">": True}}, "must be a number or text"),
        ({"n": {"<": [1]}}, "must be a single value"),
        ({"n": {"=": {"a": 1}}}, "must be a single value"),
        ({"n": {"in": "abc"}}, "must be a list"),
        ({"n": {"in": 5}}, "must be a list"),
        ({"n": [[1]]}, "must be a single value"),
        ({"n": math.nan}, "nan must be a number"),
        ({"n": math.inf}, "is infinite"),
        ({"n": b"x"}, "of type bytes"),
        ({"n": object()}, "of type object"),
        ({"any": {"n": 1}}, "must be a list of filters"),
        ({"any": "n"}, "must be a list of filters"),
        ({"not": [1]}, "must be a dict"),
        ({"": 1}, "cannot be the name of a field"),
        ({"a..b": 1}, "cannot be the name of a field"),
        ({'a"b': 1}, "cannot be the name of a field"),
        ({"a\\b": 1}, "cannot be the name of a field"),
        ({"\ud800": 1}, "not valid text"),
        ({"t": "\ud800"}, "not valid text"),
        ({"any": [{"n": k} for k in range(501)]}, "too large"),
    ],
)
def test_a_filter_that_is_not_one_is_refused(where, match):
    with pytest.raises(ValueError, match=match):
        PLAIN.where(where)


def test_a_filter_that_is_too_deep_is_refused():
    where = {"n": 1}
    for _ in range(5000):
        where = {"not": where}
    with pytest.raises(ValueError, match="too large"):
        PLAIN.where(where)


def test_ids_of_text():
    catalog = make(ids=[f"key {k}" for k in range(len(ROWS))])
    assert catalog.where({"id": "key 3"}).tolist() == [3]
    assert catalog.where({"id": {">=": "key 8"}}).tolist() == [8, 9]
    assert catalog.where({"id": 3}).tolist() == []
    assert catalog.where({"id": {"!=": 3}}).tolist() == list(range(len(ROWS)))


def test_answers_are_kept_until_something_changes():
    catalog = make()
    first = catalog.where({"n": 1})
    assert catalog.where({"n": 1}) is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 5
    for value in range(20):
        catalog.where({"n": value})
    with catalog.change():
        catalog.put(np.array([0]), 50, payload=[{"n": 1}])
    assert catalog.where({"n": 1}).tolist() == [0, 50]


def test_an_index_of_a_field_follows_every_change():
    catalog = make()
    with catalog.change():
        catalog.index_field("t")
        catalog.index_field("t")
    assert catalog.where({"t": "a"}).tolist() == [0]
    with catalog.change():
        catalog.put(np.array([0, 0]), 50, payload=[{"t": "a"}, {"t": "z"}])
        catalog.put(np.array([0]), 0, ids=[0], payload=[{"t": "z"}], replace=True)
    assert catalog.where({"t": "a"}).tolist() == [50]
    assert catalog.where({"t": "z"}).tolist() == [0, 51]
    with catalog.change():
        catalog.remove_where({"t": "z"})
    assert catalog.where({"t": ["a", "z"]}).tolist() == [50]
    assert catalog.where({"t": None}).tolist() == [2, 4, 5]
    plan = catalog._query(
        "EXPLAIN QUERY PLAN SELECT number FROM field_values WHERE field = 1 AND kind = 3"
        " AND value = 'a'"
    )
    assert "SEARCH field_values USING PRIMARY KEY" in str(plan)
    for name in ("label", "id", "name"):
        with pytest.raises(ValueError, match="needs no index"):
            catalog.index_field(name)
