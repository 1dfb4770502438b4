import numpy as np
import pytest

from hashcade.data import LabelledItems
from hashcade.errors import DataError

IMAGES = np.zeros((2, 4, 5, 3), np.uint8)


def test_embeddings_become_float32():
    for dtype in (np.float16, np.float32, np.float64, np.int8, np.uint8):
        items = LabelledItems.from_arrays(np.array([[1, 2], [3, 4]], dtype), ["b", "a"])
        assert items.items.dtype == np.float32
        assert items.items.tolist() == [[1, 2], [3, 4]]
        assert not items.is_images
    assert items.labels.tolist() == [1, 0]
    assert items.class_names == ("a", "b")
    assert items.original_labels() == ["b", "a"]
    assert (len(items), items.n_classes) == (2, 2)
    assert repr(items) == "LabelledItems(float32 2×2, source='arrays')"


def test_float32_is_not_copied():
    vectors = np.ones((3, 2), np.float32)
    assert np.shares_memory(LabelledItems.from_arrays(vectors, [1, 1, 2]).items, vectors)


def test_images_stay_as_they_are():
    items = LabelledItems.from_arrays(IMAGES, [5, -5])
    assert items.is_images
    assert items.items is IMAGES
    assert items.class_names == (-5, 5)


def test_class_names_give_the_numbers_their_meaning():
    items = LabelledItems.from_arrays(IMAGES, [2, 0], class_names=["a", "b", "c"])
    assert items.labels.tolist() == [2, 0]
    assert items.original_labels() == ["c", "a"]


def test_large_finite_numbers_are_fine():
    # Their sum is beyond float32, they are not.
    items = LabelledItems.from_arrays(np.full((2, 8), 3e38), [0, 1])
    assert np.isfinite(items.items).all()


@pytest.mark.parametrize(
    ("items", "labels", "names", "message"),
    [
        ([[1.0], [2.0]], [1], None, "x: there are 2 items and 1 labels"),
        (
            [[1.0, np.nan], [1, 1]],
            [1, 2],
            None,
            "x: items has NaN or values beyond float32 in row 0",
        ),
        (
            [[0.0], [np.inf], [1e39]],
            [1, 2, 3],
            None,
            "x: items has NaN or values beyond float32 in rows 1, 2",
        ),
        (np.full((30, 2), np.nan), range(30), None, "rows 0, .*, 9 and 20 more"),
        (np.zeros((0, 3)), [], None, r"items is float32 of shape \(0, 3\), must be"),
        (np.zeros((3, 0)), [1, 2, 3], None, r"items has shape \(3, 0\), must be"),
        (np.zeros(3), [1, 2, 3], None, r"float64 of shape \(3,\), must be embeddings \(n, m\)"),
        (np.zeros((2, 4, 4), np.uint8), [1, 2], None, r"shape \(2, 4, 4\), must be"),
        (
            IMAGES.astype(float),
            [1, 2],
            None,
            r"items is float64 of shape \(2, 4, 5, 3\), must be .* uint8 images",
        ),
        (IMAGES.transpose(0, 3, 1, 2), [1, 2], None, r"uint8 of shape \(2, 3, 4, 5\), must be"),
        ([[1.0], [2.0, 3.0]], [1, 2], None, "items is not a rectangular array"),
        ([["a"], ["b"]], [1, 2], None, "items has dtype <U1, must be real numbers"),
        ([[1.0], [2.0]], [[1, 0], [0, 1]], None, r"labels has \[1, 0\] \(list\) in row 0"),
        ([[1.0], [2.0]], [0, 2], ["a", "b"], "labels must be from 0 to 1, not so in row 1"),
        ([[1.0], [2.0]], [-1, 0], ["a", "b"], "labels must be from 0 to 1, not so in row 0"),
        ([[1.0], [2.0]], [[0], [0, 1]], ["a", "b"], "labels is not a rectangular array"),
        ([[1.0], [2.0]], ["a", "b"], ["a", "b"], "with class_names it must be class numbers"),
    ],
)
def test_invalid_arrays_are_one_line(items, labels, names, message):
    with pytest.raises(DataError, match=message) as caught:
        LabelledItems.from_arrays(items, labels, class_names=names, source="x")
    assert str(caught.value).startswith("x: ")
    assert (caught.value.hint == "remove or fix these rows") == ("NaN" in str(caught.value))
    assert "\n" not in str(caught.value)
