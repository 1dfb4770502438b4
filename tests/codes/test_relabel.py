import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hashcade import relabel_by_code


@given(hnp.arrays(bool, st.tuples(st.integers(0, 12), st.integers(1, 3))))
def test_labels_are_equal_exactly_where_codes_are(codes):
    labels = relabel_by_code(codes)
    assert labels.dtype == np.int64
    for p in range(len(codes)):
        for q in range(len(codes)):
            assert (labels[p] == labels[q]) == np.array_equal(codes[p], codes[q])


@given(hnp.arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 3))))
def test_labels_are_numbered_by_first_appearance(codes):
    labels = relabel_by_code(codes)
    # Each label is an old one, or the next one that has not been used yet.
    assert labels[0] == 0
    for p in range(1, len(labels)):
        assert labels[p] <= labels[:p].max() + 1


def test_slots_beyond_one_byte_count():
    codes = np.zeros((3, 20), dtype=bool)
    codes[0, 19] = codes[1, 11] = codes[2, 19] = True
    assert relabel_by_code(codes).tolist() == [0, 1, 0]


def test_codes_of_one_level_only():
    with pytest.raises(ValueError, match=r"shape \(2, 3, 4\), must be \(n_classes, width\)"):
        relabel_by_code(np.zeros((2, 3, 4), dtype=bool))
