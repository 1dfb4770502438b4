import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashcade.data import encode_labels
from hashcade.errors import DataError

INTEGERS = st.lists(st.integers(-(2**80), 2**80), min_size=1)
STRINGS = st.lists(st.text(), min_size=1)


@given(st.one_of(INTEGERS, STRINGS))
def test_labels_come_back_and_classes_are_sorted_and_used(labels):
    numbers, names = encode_labels(labels)
    assert numbers.dtype == np.int64
    assert numbers.shape == (len(labels),)
    assert [names[number] for number in numbers] == labels
    assert list(names) == sorted(set(labels))
    assert sorted(set(numbers.tolist())) == list(range(len(names)))


@given(
    st.lists(st.integers(0, 100), min_size=1),
    st.sampled_from([np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float64]),
)
def test_arrays_give_what_lists_give(labels, dtype):
    array = np.array(labels, dtype=dtype)
    if array.dtype.kind == "f":
        with pytest.raises(DataError, match="labels has dtype float64, must be one integer or"):
            encode_labels(array)
        return
    numbers, names = encode_labels(array)
    expected_numbers, expected_names = encode_labels(labels)
    assert numbers.tolist() == expected_numbers.tolist()
    assert names == expected_names
    assert all(type(name) is int for name in names)


@given(st.lists(st.text(alphabet="abä\x00 ", max_size=3), min_size=1))
def test_arrays_of_objects_and_tables_keep_strings_exactly(labels):
    array = np.empty(len(labels), object)
    array[:] = labels
    numbers, names = encode_labels(array)
    assert [names[number] for number in numbers] == labels


def test_numpy_strings_and_bytes_are_strings():
    for dtype in ("<U3", "S3"):
        numbers, names = encode_labels(np.array(["cat", "ape", "cat"], dtype))
        assert numbers.tolist() == [1, 0, 1]
        assert names == ("ape", "cat")


def test_extremes_of_integer_dtypes():
    assert encode_labels(np.array([2**64 - 1, 0], np.uint64))[1] == (0, 2**64 - 1)
    assert encode_labels(np.array([-(2**63), 5], np.int64))[1] == (-(2**63), 5)
    assert encode_labels([2**63, -1])[1] == (-1, 2**63)
    assert encode_labels(np.array([True, False]))[1] == (0, 1)


def test_tensors_and_columns_are_accepted():
    class Tensor:
        def detach(self):
            return self

        def cpu(self):
            return self

        def __array__(self, dtype=None, copy=None):
            return np.array([7, -7])

    class Column:
        def to_numpy(self):
            return np.array(["b", "a"], object)

    assert encode_labels(Tensor())[1] == (-7, 7)
    assert encode_labels(Column())[1] == ("a", "b")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "labels is empty, must have at least one"),
        (np.array([]), "labels has dtype float64, must be one integer or one string per item"),
        (np.array([], int), "labels is empty, must have at least one"),
        (np.eye(3, dtype=int), r"labels has shape \(3, 3\), must be \(n,\): must be one integer"),
        (np.array(3), r"labels has shape \(\), must be \(n,\)"),
        (
            [[1, 2], [3]],
            r"labels has \[1, 2\] \(list\) in row 0, must be one integer or one string",
        ),
        (["a", ("b", "c")], r"labels has \('b', 'c'\) \(tuple\) in row 1"),
        ([1, "1"], "an integer in row 0 and a string in row 1, must be all integers or all"),
        (["x", "y", 3, 4], "an integer in row 2 and a string in row 0"),
        ([1, None], r"labels has None \(NoneType\) in row 1"),
        ([1.5], r"labels has 1.5 \(float\) in row 0"),
        (np.array([1.0, np.nan]), "labels has dtype float64"),
        ([b"\xff"], r"labels has b'\\xff' \(bytes\) in row 0"),
        ("cat", "labels is str"),
        (5, "labels is int"),
    ],
)
def test_invalid_labels_are_refused(labels, message):
    with pytest.raises(DataError, match=message) as caught:
        encode_labels(labels)
    assert "\n" not in str(caught.value)
