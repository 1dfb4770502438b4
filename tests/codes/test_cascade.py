"""The cascade: level after level, each optimal given the levels above."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashcade import CodeShape, code_energy, solve_cascade, solve_level


@given(
    width=st.integers(1, 9),
    depth=st.integers(1, 4),
    n_classes=st.integers(0, 30),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
@settings(deadline=None)
def test_each_level_is_solved_for_the_siblings_that_the_levels_above_left(
    width, depth, n_classes, seed, data
):
    sparsity = data.draw(st.integers(1, width))
    shape = CodeShape(width=width, depth=depth, sparsity=sparsity)
    scores = np.random.default_rng(seed).normal(size=(depth, n_classes, width))
    penalties = {"sibling_penalty": 5.0, "collision_penalty": 0.1}
    codes = solve_cascade(scores, shape, **penalties)

    assert codes.shape == scores.shape
    assert codes.dtype == bool
    for level in range(depth):
        per_class = sparsity if level == depth - 1 else 1
        assert (codes[level].sum(axis=1) == per_class).all()
        paths = [codes[:level, p].tobytes() for p in range(n_classes)]
        groups = np.array([paths.index(path) for path in paths], int)
        problem = {"sibling_groups": groups, **penalties} if level else penalties
        best = solve_level(scores[level], sparsity=per_class, **problem)
        assert code_energy(codes[level], scores[level], **problem) == pytest.approx(
            code_energy(best, scores[level], **problem), abs=1e-9
        )


def test_siblings_part_when_the_penalty_is_large():
    shape = CodeShape(width=8, depth=2)
    scores = np.random.default_rng(1).normal(size=(2, 64, 8))
    codes = solve_cascade(scores, shape, sibling_penalty=100.0, collision_penalty=1.0)
    assert len(np.unique(shape.codes_to_bucket_ids(codes))) == 64  # every class its own bucket


def test_more_classes_than_buckets_share_evenly():
    shape = CodeShape(width=2, depth=2)
    scores = np.random.default_rng(1).normal(size=(2, 20, 2))
    codes = solve_cascade(scores, shape, sibling_penalty=100.0, collision_penalty=100.0)
    assert np.bincount(shape.codes_to_bucket_ids(codes).ravel()).tolist() == [5, 5, 5, 5]


def test_group_numbers_do_not_overflow_in_deep_narrow_cascades():
    shape = CodeShape(width=2, depth=62)
    scores = np.random.default_rng(1).normal(size=(62, 5, 2))
    codes = solve_cascade(scores, shape, sibling_penalty=1.0, collision_penalty=0.1)
    assert (codes.sum(axis=2) == 1).all()


@pytest.mark.parametrize("bad", [(2, 5, 3), (3, 5, 4), (5, 4)])
def test_scores_of_another_shape_are_refused(bad):
    with pytest.raises(ValueError, match=r"depth=2 and width=4"):
        solve_cascade(
            np.zeros(bad), CodeShape(width=4, depth=2), sibling_penalty=0, collision_penalty=0
        )


def test_errors_name_the_level():
    scores = np.zeros((2, 3, 4))
    scores[1, 2, 0] = np.nan
    with pytest.raises(ValueError, match=r"level 2: .* row 2$"):
        solve_cascade(scores, CodeShape(width=4, depth=2), sibling_penalty=0, collision_penalty=0.0)
