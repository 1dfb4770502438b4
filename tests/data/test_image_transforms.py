import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashcade.data import augment, per_pixel_mean


def images_of(n, height=32, width=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


def augment_by_loops(images, rng, pad):
    n, height, width, _ = images.shape
    shifts = rng.integers(0, 2 * pad + 1, size=(2, n))
    mirrored = rng.random(n) < 0.5
    result = np.zeros_like(images)
    for i in range(n):
        for y in range(height):
            for x in range(width):
                from_y = y + shifts[0, i] - pad
                from_x = (width - 1 - x if mirrored[i] else x) + shifts[1, i] - pad
                if 0 <= from_y < height and 0 <= from_x < width:
                    result[i, y, x] = images[i, from_y, from_x]
    return result


@given(
    st.integers(1, 5),
    st.integers(1, 7),
    st.integers(1, 7),
    st.integers(0, 5),
    st.sampled_from([np.uint8, np.float32]),
    st.integers(0, 2**32),
)
def test_augment_equals_plain_loops(n, height, width, pad, dtype, seed):
    images = images_of(n, height, width).astype(dtype)
    before = images.copy()
    found = augment(images, np.random.default_rng(seed), pad=pad)
    expected = augment_by_loops(images, np.random.default_rng(seed), pad)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == dtype
    np.testing.assert_array_equal(images, before)


def test_augment_takes_views_and_uses_all_chances():
    image = np.zeros((1, 9, 9, 3), np.uint8)
    image[0, 4, 3] = 255  # beside the middle, so that a mirror shows
    found = augment(np.repeat(image, 4000, axis=0)[::2], np.random.default_rng(0))
    places = {tuple(place) for place in np.argwhere(found[..., 0])[:, 1:].tolist()}
    # Up to four pixels each way from row 4 and column 3, or column 5 in the mirror.
    assert places == {(y, x) for y in range(9) for x in range(9)}


def test_without_mirrors_the_same_chances_give_the_same_places():
    images = images_of(40)
    plain = augment(images, np.random.default_rng(0), mirror=False)
    mixed = augment(images, np.random.default_rng(0))
    mirrored = (mixed == plain[:, :, ::-1]).all(axis=(1, 2, 3))
    assert 8 <= mirrored.sum() <= 32
    np.testing.assert_array_equal(mixed[~mirrored], plain[~mirrored])


def test_the_mean_is_exact_in_any_number_of_pieces():
    images = images_of(9000, 2, 3)
    expected = images.astype(np.float64).mean(axis=0) / 255
    found = per_pixel_mean(images)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_inputs_are_checked():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"images has shape \(2, 3\), must be \(n, height"):
        augment(np.zeros((2, 3), np.uint8), rng)
    with pytest.raises(ValueError, match="pad=-1 must be >= 0"):
        augment(images_of(1), rng, pad=-1)
    with pytest.raises(ValueError, match="images has dtype float32, must be uint8"):
        per_pixel_mean(images_of(1).astype(np.float32))
    with pytest.raises(ValueError, match=r"n >= 1"):
        per_pixel_mean(images_of(0))
