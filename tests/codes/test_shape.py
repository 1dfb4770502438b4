import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hashcade import CodeShape

shapes = st.tuples(st.integers(1, 600), st.integers(1, 6)).map(
    lambda pair: CodeShape(width=pair[0], depth=pair[1])
)

# -- construction -------------------------------------------------------------------------


def test_settings_are_keyword_only_frozen_and_plain_ints():
    shape = CodeShape(width=np.int64(128), depth=np.int8(2))
    assert (shape.width, shape.depth, shape.sparsity, shape.n_buckets) == (128, 2, 1, 16384)
    assert {type(n) for n in dataclasses.astuple(shape)} == {int}
    assert shape == CodeShape(width=128, depth=2, sparsity=1)
    assert hash(shape) == hash(CodeShape(width=128, depth=2, sparsity=1))
    with pytest.raises(TypeError):
        CodeShape(128, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        shape.width = 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 4, "depth": 1, "sparsity": 5}, "^sparsity=5 must be <= width=4$"),
        ({"width": 0, "depth": 1}, "^width=0 must be >= 1$"),
        ({"width": 4, "depth": -1}, "^depth=-1 must be >= 1$"),
        ({"width": 4, "depth": 1, "sparsity": 0}, "^sparsity=0 must be >= 1$"),
        ({"width": 4.0, "depth": 1}, r"^width=4\.0 must be an integer$"),
    ],
)
def test_bad_settings_are_refused_with_both_sides(settings, message):
    with pytest.raises(ValueError, match=message):
        CodeShape(**settings)


def test_buckets_beyond_int64_are_refused():
    assert CodeShape(width=2**63 - 1, depth=1).n_buckets == 2**63 - 1
    assert CodeShape(width=2, depth=62).n_buckets == 2**62
    assert CodeShape(width=1, depth=100).n_buckets == 1
    for width, depth in [(2**63, 1), (2, 63), (512, 7), (3, 10**12)]:
        with pytest.raises(ValueError, match=rf"{width}\*\*{depth} buckets, must be <= 2\*\*63"):
            CodeShape(width=width, depth=depth)


# -- id <-> path --------------------------------------------------------------------------


def test_level_one_is_most_significant():
    shape = CodeShape(width=10, depth=3)
    assert shape.bucket_ids([[1, 2, 3], [0, 0, 9]]).tolist() == [123, 9]
    assert shape.paths([123, 9]).tolist() == [[1, 2, 3], [0, 0, 9]]


def test_ids_count_the_paths_in_lexicographic_order():
    shape = CodeShape(width=3, depth=4)
    paths = np.stack(np.unravel_index(np.arange(81), (3,) * 4), axis=-1)
    assert shape.bucket_ids(paths).tolist() == list(range(81))
    np.testing.assert_array_equal(shape.paths(np.arange(81)), paths)


@given(st.data(), shapes)
def test_paths_and_ids_are_inverse(data, shape):
    ids = data.draw(
        hnp.arrays(
            np.int64,
            hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
            elements=st.integers(0, shape.n_buckets - 1),
        )
    )
    paths = shape.paths(ids)
    assert paths.shape == (*ids.shape, shape.depth)
    assert paths.dtype == np.int64
    back = shape.bucket_ids(paths)
    assert back.dtype == np.int64
    np.testing.assert_array_equal(back, ids)


def test_last_bucket_of_the_largest_tables():
    for width, depth in [(2**63 - 1, 1), (2, 62), (2097151, 3)]:
        shape = CodeShape(width=width, depth=depth)
        last = shape.paths(shape.n_buckets - 1)
        assert last.tolist() == [width - 1] * depth
        assert int(shape.bucket_ids(last)) == shape.n_buckets - 1


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64])
def test_small_and_unsigned_dtypes_do_not_wrap_around(dtype):
    shape = CodeShape(width=100, depth=3)
    ids = shape.bucket_ids(np.array([[99, 99, 99]], dtype=dtype))
    assert ids.dtype == np.int64
    assert ids.tolist() == [999999]


def test_empty_input_gives_empty_output():
    shape = CodeShape(width=4, depth=2)
    assert shape.bucket_ids(np.zeros((0, 2), dtype=int)).shape == (0,)
    assert shape.paths([]).shape == (0, 2)


def test_values_out_of_range_are_refused_by_row():
    shape = CodeShape(width=4, depth=2)
    with pytest.raises(ValueError, match=r"paths .* outside 0\.\.3 in rows 1, 2, .*width=4"):
        shape.bucket_ids([[0, 0], [0, 4], [-1, 0], [3, 3]])
    with pytest.raises(ValueError, match=r"outside 0\.\.15 in row 2, .*n_buckets=16"):
        shape.paths([0, 15, 16])
    with pytest.raises(ValueError, match=r"outside 0\.\.15 in row 0,"):
        shape.paths([[0, -1], [0, 0]])
    with pytest.raises(ValueError, match=r"outside 0\.\.15, must be"):
        shape.paths(16)
    with pytest.raises(ValueError, match="in row 0,"):
        shape.paths(np.array([2**64 - 1], dtype=np.uint64))


def test_wrong_shape_and_dtype_are_refused():
    shape = CodeShape(width=4, depth=2)
    with pytest.raises(ValueError, match=r"shape \(1, 3\), must be \(\.\.\., depth=2\)"):
        shape.bucket_ids([[0, 0, 0]])
    with pytest.raises(ValueError, match="must be \\(\\.\\.\\., depth=2\\)"):
        shape.bucket_ids(0)
    with pytest.raises(ValueError, match="paths has dtype float64, must be integers"):
        shape.bucket_ids([[0.0, 1.0]])
    with pytest.raises(ValueError, match="bucket_ids has dtype bool, must be integers"):
        shape.paths([True])


# -- codes -> ids -------------------------------------------------------------------------


def test_codes_give_one_id_per_active_last_slot_in_ascending_order():
    shape = CodeShape(width=3, depth=2, sparsity=2)
    codes = np.zeros((2, 2, 3), dtype=bool)  # (depth, n, width)
    codes[0, 0, 2] = codes[0, 1, 0] = True
    codes[1, 0, [0, 2]] = codes[1, 1, [0, 1]] = True
    ids = shape.codes_to_bucket_ids(codes)
    assert ids.dtype == np.int64
    assert ids.tolist() == [[6, 8], [0, 1]]


def test_codes_of_no_classes_and_of_one_level():
    assert CodeShape(width=3, depth=2, sparsity=2).codes_to_bucket_ids(
        np.zeros((2, 0, 3), dtype=bool)
    ).shape == (0, 2)
    assert CodeShape(width=3, depth=1).codes_to_bucket_ids([np.eye(3)]).tolist() == [[0], [1], [2]]


def test_codes_with_another_number_of_active_slots_are_refused_by_row():
    shape = CodeShape(width=3, depth=2, sparsity=2)
    good = np.zeros((2, 3, 3), dtype=bool)
    good[0, :, 0] = good[1, :, 0] = good[1, :, 2] = True
    assert shape.codes_to_bucket_ids(good).tolist() == [[0, 2]] * 3
    upper = good.copy()
    upper[0, 1, 1] = True
    with pytest.raises(ValueError, match=r"1 active slot.* at level 1 of 2, .* in row 1$"):
        shape.codes_to_bucket_ids(upper)
    last = good.copy()
    last[1, [0, 2], 0] = False
    with pytest.raises(ValueError, match=r"2 active slot.* at level 2 of 2, .* in rows 0, 2$"):
        shape.codes_to_bucket_ids(last)
    with pytest.raises(ValueError, match=r"\(3, 3, 2\), must be \(depth=2, n_classes, width=3\)"):
        shape.codes_to_bucket_ids(good.transpose(1, 2, 0))


# -- scores -> ids ------------------------------------------------------------------------


@given(st.data())
def test_scores_to_ids_is_equation_one(data):
    width, depth = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    shape = CodeShape(width=width, depth=depth, sparsity=data.draw(st.integers(1, width)))
    # Few different values, so that ties are common.
    values = st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 0.5, np.inf])
    n = data.draw(st.integers(0, 4))
    scores = data.draw(hnp.arrays(np.float32, (n, depth, width), elements=values))
    expected = []
    for item in scores.tolist():
        best_first = [sorted(range(width), key=lambda s, row=row: (-row[s], s)) for row in item]
        upper = [order[0] for order in best_first[:-1]]
        expected.append(
            [int(shape.bucket_ids([*upper, s])) for s in best_first[-1][: shape.sparsity]]
        )
    ids = shape.scores_to_bucket_ids(scores)
    assert ids.dtype == np.int64
    assert ids.shape == (n, shape.sparsity)
    assert ids.tolist() == expected


def test_ties_go_to_the_lower_slot_in_wide_levels_too():
    # Short rows are sorted stably by any method; wide ones tell them apart.
    scores = np.random.default_rng(0).integers(0, 3, (50, 1, 500)).astype(np.float32)
    ids = CodeShape(width=500, depth=1, sparsity=400).scores_to_bucket_ids(scores)
    expected = [sorted(range(500), key=lambda s, row=row: (-row[0, s], s))[:400] for row in scores]
    assert ids.tolist() == expected


def test_unsigned_scores_are_ordered_as_numbers():
    shape = CodeShape(width=3, depth=1, sparsity=2)
    assert shape.scores_to_bucket_ids(np.array([[[0, 2, 1]]], dtype=np.uint8)).tolist() == [[1, 2]]


def test_nan_scores_are_refused_by_row():
    scores = np.zeros((5, 2, 3))
    scores[[1, 4], 0, 2] = np.nan
    with pytest.raises(ValueError, match=r"^scores has NaN in rows 1, 4$"):
        CodeShape(width=3, depth=2).scores_to_bucket_ids(scores)


def test_scores_of_another_shape_or_kind_are_refused():
    shape = CodeShape(width=3, depth=2)
    with pytest.raises(ValueError, match=r"\(5, 3, 2\), must be \(n, depth=2, width=3\)"):
        shape.scores_to_bucket_ids(np.zeros((5, 3, 2)))
    with pytest.raises(ValueError, match="complex128, must be real"):
        shape.scores_to_bucket_ids(np.zeros((5, 2, 3), dtype=complex))
