import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashcade.data import stratified_sample


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.data())
def test_classes_give_as_many_as_far_as_they_have_them(sizes, data):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    n = data.draw(st.integers(len(sizes), sum(sizes) + 2))

    rows = stratified_sample(labels, n, random_state=1)

    assert len(rows) == min(n, sum(sizes))
    assert (np.diff(rows) > 0).all()
    taken = np.bincount(labels[rows], minlength=len(sizes))
    partly = taken[taken < sizes]  # a class that has more gives as many as any other, or one less
    assert partly.size == 0 or partly.min() >= taken.max() - 1


def test_too_few_for_all_classes():
    with pytest.raises(ValueError, match=r"sample=2 must be >= 3"):
        stratified_sample(np.array(["a", "b", "c", "c"]), 2)


def test_another_seed_takes_others():
    labels = np.zeros(100, np.int64)
    one, two = (stratified_sample(labels, 10, random_state=seed) for seed in (0, 1))
    assert one.tolist() != two.tolist()
