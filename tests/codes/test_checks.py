import warnings

import numpy as np
import pyarrow
import pytest

from hashcade._validate import as_array, checked_count, checked_number, name_rows
from hashcade.codes.checks import (
    checked_codes,
    checked_groups,
    checked_scores,
    checked_sparsity,
)


class FakeTensor:
    """Behaves like a torch tensor that needs a gradient: numpy may have it after detach."""

    def __init__(self, array, *, detached=False, numpy_knows_dtype=True):
        self.array, self.detached, self.known = array, detached, numpy_knows_dtype

    def detach(self):
        return FakeTensor(self.array, detached=True, numpy_knows_dtype=self.known)

    def cpu(self):
        return self

    def float(self):
        return FakeTensor(self.array.astype(np.float32), detached=self.detached)

    def __array__(self, dtype=None, copy=None):
        if not self.detached:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        if not self.known:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.array


# -- rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([3], "row 3"),
        ([3, 17], "rows 3, 17"),
        (range(10), "rows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (range(15), "rows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 5 more"),
    ],
)
def test_rows_are_named_up_to_ten(rows, text):
    bad = np.zeros(20, dtype=bool)
    bad[list(rows)] = True
    assert name_rows(bad) == text


# -- scores -------------------------------------------------------------------------------


def test_good_scores_are_not_copied():
    scores = np.ones((3, 2))
    assert checked_scores(scores) is scores


@pytest.mark.parametrize(
    "given",
    [
        [[1, 2], [3, 4]],
        ((1.0, 2.0), (3.0, 4.0)),
        np.array([[1, 2], [3, 4]], dtype=np.int8),
        np.array([[1, 2], [3, 4]], dtype=np.float16),
        np.array([[1, 2], [3, 4]], dtype=">f8"),
        np.array([[1, 3], [2, 4]], dtype=float).T,
        np.array([[1, 0, 2], [3, 0, 4]], dtype=float)[:, ::2],
        FakeTensor(np.array([[1, 2], [3, 4]], dtype=np.float32)),
        FakeTensor(np.array([[1, 2], [3, 4]]), numpy_knows_dtype=False),
    ],
    ids=lambda given: type(given).__name__,
)
def test_scores_of_every_real_kind_are_accepted(given):
    scores = checked_scores(given)
    assert scores.dtype == np.float64
    assert scores.dtype.isnative
    assert scores.flags.c_contiguous
    np.testing.assert_array_equal(scores, [[1, 2], [3, 4]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_refused_by_row(bad):
    scores = np.zeros((20, 3))
    scores[3, 0] = scores[17, 2] = bad
    with pytest.raises(ValueError, match=r"class_scores has NaN or infinite values in rows 3, 17$"):
        checked_scores(scores)


def test_infinities_of_both_signs_do_not_cancel():
    with pytest.raises(ValueError, match=r"row 0$"):
        checked_scores([[np.inf, -np.inf]])


def test_huge_finite_scores_are_accepted_without_a_warning():
    scores = np.full((64, 16), 1e300)
    scores[::2] *= -1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checked_scores(scores) is scores


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (3, 0), ()])
def test_scores_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match="must be \\(n_classes, width\\)") as error:
        checked_scores(np.zeros(shape))
    assert str(shape) in str(error.value)


def test_no_classes_are_accepted():
    assert checked_scores(np.zeros((0, 4))).shape == (0, 4)


@pytest.mark.parametrize("given", [[[1j]], [["a"]], [[None]]])
def test_scores_that_are_no_real_numbers_are_refused(given):
    with pytest.raises(ValueError, match="must be real numbers"):
        checked_scores(given)


def test_ragged_lists_are_refused():
    with pytest.raises(ValueError, match="class_scores is not a rectangular array"):
        checked_scores([[1, 2], [3]])


# -- codes --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32])
def test_codes_of_zeros_and_ones_are_accepted(dtype):
    codes = checked_codes(np.array([[1, 0]], dtype=dtype))
    assert codes.dtype == bool
    assert codes.tolist() == [[True, False]]


@pytest.mark.parametrize("given", [[[2, 0]], [[0.5, 0]], [[np.nan, 0]], [[-1, 0]]])
def test_codes_with_other_values_are_refused(given):
    with pytest.raises(ValueError, match="other than 0 and 1"):
        checked_codes(given)


def test_codes_of_another_dtype_are_refused():
    with pytest.raises(ValueError, match="must be bool"):
        checked_codes([["x"]])


def test_codes_and_scores_of_different_shape_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 3\), class_scores has shape \(3, 2\)"):
        checked_codes(np.zeros((2, 3), dtype=bool), (3, 2))


# -- groups -------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [[5, -7, 5], np.array([5, -7, 5], dtype=np.int16)])
def test_groups_may_be_any_integers(given):
    groups = checked_groups(given, 3)
    assert groups.dtype == np.int64
    assert groups.tolist() == [5, -7, 5]


def test_unsigned_groups_beyond_int64_stay_different():
    groups = checked_groups(np.array([2**64 - 1, 2**63, 1, 2**63], dtype=np.uint64), 4)
    assert len(set(groups.tolist())) == 3
    assert groups[1] == groups[3]


def test_empty_groups_are_accepted():
    assert checked_groups([], 0).shape == (0,)


def test_groups_of_wrong_length_are_refused_with_both_numbers():
    with pytest.raises(ValueError, match="has 2 entries, class_scores has 3 classes"):
        checked_groups([0, 1], 3)


@pytest.mark.parametrize("given", [[0.0, 1.0], [True, False], ["a", "b"], [None, 1]])
def test_groups_that_are_no_integers_are_refused(given):
    with pytest.raises(ValueError, match="must be integers"):
        checked_groups(given, 2)


def test_groups_of_two_dimensions_are_refused():
    with pytest.raises(ValueError, match=r"shape \(2, 1\), must be \(2,\)"):
        checked_groups([[0], [1]], 2)


# -- numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 0.0, 1.5, np.float32(2), np.array(3), 10**300])
def test_penalties_become_floats(value):
    penalty = checked_number("alpha", value)
    assert type(penalty) is float
    assert penalty == float(value)


@pytest.mark.parametrize("value", [-1e-300, -1, np.nan, np.inf, -np.inf, 10**400])
def test_penalties_out_of_range_are_refused(value):
    with pytest.raises(ValueError, match=r"^alpha=.* must be finite and >= 0$"):
        checked_number("alpha", value)


@pytest.mark.parametrize("value", [None, "much", [1, 2]])
def test_penalties_that_are_no_numbers_are_refused(value):
    with pytest.raises(ValueError, match=r"^alpha=.* must be a number$"):
        checked_number("alpha", value)


def test_sparsity_lies_between_one_and_width():
    assert [checked_sparsity(s, 3) for s in (1, 2, 3)] == [1, 2, 3]
    assert type(checked_sparsity(np.int32(2), 3)) is int
    with pytest.raises(ValueError, match=r"^sparsity=5 must be <= width=4$"):
        checked_sparsity(5, 4)
    with pytest.raises(ValueError, match=r"^sparsity=0 must be >= 1$"):
        checked_sparsity(0, 4)


@pytest.mark.parametrize("value", [1.0, "1", None, True])
def test_counts_that_are_no_integers_are_refused(value):
    with pytest.raises(ValueError, match="must be an integer"):
        checked_count("width", value)


def test_arrays_pass_through_untouched():
    array = np.arange(3)
    assert as_array("x", array) is array


def test_a_column_of_embeddings_is_an_array_of_rows():
    rows = [np.arange(3, dtype=np.float32), np.ones(3, np.float32)]
    column = np.empty(2, object)
    column[:] = rows
    assert as_array("x", column).tolist() == as_array("x", rows).tolist() == [[0, 1, 2], [1, 1, 1]]
    arrow = pyarrow.chunked_array([pyarrow.array(rows)])
    assert as_array("x", arrow).dtype == np.float32
    column[1] = rows[1][:2]
    with pytest.raises(ValueError, match="x is not a rectangular array"):
        as_array("x", column)
