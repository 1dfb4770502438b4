"""Checks of arguments: the one form, or a message with both sides."""

import math

import numpy as np
import pytest

from hashcade import _validate as validate


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_counts(value):
    count = validate.checked_count("n", value)
    assert (count, type(count)) == (3, int)


@pytest.mark.parametrize(
    ("value", "message"),
    [(0, "n=0 must be >= 1"), (-2, "n=-2 must be >= 1"), (1.5, "n=1.5 must be an integer"),
     (True, "n=True must be an integer"), ("3", "n='3' must be an integer"),
     (None, "n=None must be an integer")],
)  # fmt: skip
def test_bad_counts(value, message):
    with pytest.raises(ValueError, match=message):
        validate.checked_count("n", value)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, 10**400, "x", None])
def test_bad_numbers(value):
    with pytest.raises(ValueError, match=r"^rate="):
        validate.checked_number("rate", value)


def test_minus_zero_becomes_zero():
    assert math.copysign(1, validate.checked_number("rate", -0.0)) == 1


def test_choices():
    assert validate.checked_choice("fill", "path", ("path", "none")) == "path"
    with pytest.raises(ValueError, match="fill='way' must be one of 'path', 'none'"):
        validate.checked_choice("fill", "way", ("path", "none"))


def test_good_vectors_are_not_copied():
    vectors = np.ones((3, 2), dtype=np.float32)
    assert validate.checked_vectors("X", vectors) is vectors


@pytest.mark.parametrize(
    ("value", "message"),
    [([1.0, 2.0], r"X has shape \(2,\), must be \(n, dim\)"),
     ([["a"]], "X has dtype"),
     ([[1.0], [math.nan], [math.inf]], "X has NaN or values beyond float32 in rows 1, 2"),
     ([[1e39]], "X has NaN or values beyond float32 in row 0"),
     ([[1.0], [1.0, 2.0]], "X is not a rectangular array")],
)  # fmt: skip
def test_bad_vectors(value, message):
    with pytest.raises(ValueError, match=message):
        validate.checked_vectors("X", value)


def test_finite_vectors_whose_squares_overflow_are_fine():
    assert len(validate.checked_vectors("X", [[3e38, 3e38]])) == 1


def test_labels_in_the_forms_that_tables_have_them():
    assert validate.checked_labels("y", np.array(["a", "b"], dtype=object)).dtype.kind == "U"
    assert validate.checked_labels("y", [1.0, 2.0]).tolist() == [1, 2]
    with pytest.raises(ValueError, match="y has 1 entries, X has 2 rows"):
        validate.checked_labels("y", [1], 2)
    with pytest.raises(ValueError, match="must be integers or strings"):
        validate.checked_labels("y", [1.5])


def test_ten_rows_are_named_at_most():
    assert validate.name_ids(np.array([7])) == "id 7"
    assert validate.name_rows(np.ones(12, bool)).endswith("7, 8, 9 and 2 more")
    assert validate.name_ids(np.array([3, 5])) == "ids 3, 5"
