import numpy as np
import pytest

from experiments.datasets import han, load_embeddings
from experiments.datasets.han import SIZES, load_han, make_han, orientation_histograms, write_set
from hashcade.data import read_npz
from hashcade.errors import DataError

LATIN = ("DejaVuSans.ttf", "DejaVuSerif.ttf", "DejaVuSansMono.ttf")


@pytest.fixture
def latin_fonts(monkeypatch):
    """Fonts that have no Han character: those of matplotlib."""
    matplotlib = pytest.importorskip("matplotlib")
    folder = han.Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    if not all((folder / name).is_file() for name in LATIN):
        pytest.skip(f"{folder} has no DejaVu fonts")
    monkeypatch.setattr(han, "FONTS", folder)


def test_a_histogram_has_the_orientation_of_an_edge_in_its_cell():
    images = np.zeros((4, 48, 48), np.float32)
    images[0, :, 27:] = 1.0  # upright: the gradient points right
    images[1] = images[0].T
    images[2] = 1.0 - images[0]  # the same edge, dark and light exchanged
    images[3] = np.tri(48)
    histograms = orientation_histograms(images).reshape(4, 8, 8, 8)
    # A step of height 1 is half a step in each of two columns, which lie in cell 4 of 8.
    expected = np.zeros((8, 8, 8))
    expected[:, 4, 0] = np.sqrt(6 * 2 * 0.5)
    np.testing.assert_allclose(histograms[0], expected, atol=1e-6)
    np.testing.assert_allclose(histograms[1][4, :, 4], np.sqrt(6), rtol=1e-6)
    np.testing.assert_allclose(histograms[2], histograms[0], atol=1e-6)
    assert histograms[3].sum(axis=(0, 1)).argmax() in (2, 6)


def test_what_is_larger_than_the_image_is_cut_off():
    ink = np.arange(60 * 3, dtype=np.uint8).reshape(60, 3)
    image = np.zeros((48, 48), np.float32)
    han._paste(image, ink, np.array([2, -1]))
    np.testing.assert_allclose(image[:, 21:24], ink[4:52] / 255, rtol=1e-6)
    assert image[:, :21].sum() == image[:, 24:].sum() == 0


def test_a_set_is_written_whole_and_names_what_is_missing(latin_fonts, tmp_path):
    characters = han.FIRST + np.arange(7) * 100
    for name in ("one", "two"):
        write_set(tmp_path / f"{name}.npz", characters, LATIN[:2], LATIN[2:])
    one, two = (read_npz(tmp_path / f"{name}.npz") for name in ("one", "two"))
    assert {file.name for file in tmp_path.iterdir()} == {"one.npz", "two.npz"}
    assert one["train"].shape == (14, 128)
    assert one["test"].shape == (7, 128)
    assert one["train"].dtype == np.float16
    assert one["train_labels"].tolist() == [*characters, *characters]
    assert one["train_missing"].all()
    assert one["test_missing"].all()
    for name, values in one.items():
        np.testing.assert_array_equal(values, two[name])


def test_a_stored_set_is_loaded_and_not_made_again(monkeypatch, tmp_path):
    monkeypatch.setattr(han, "FONTS", tmp_path / "nowhere")
    with pytest.raises(DataError, match="14 of 14 fonts are missing: opentype/noto") as caught:
        make_han(2000, cache=tmp_path)
    assert "make fonts" in caught.value.hint
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="n_classes=3 must be one of 2000, 20902"):
        make_han(3, cache=tmp_path)
    np.savez(
        tmp_path / "han-2000.npz", test=np.eye(3), test_labels=[20000, 19968, 19968],
        test_missing=[False, True, False],
    )  # fmt: skip
    items = load_han(2000, "test", cache=tmp_path)
    assert items.class_names == (19968, 20000)
    assert items.labels.tolist() == [1, 0, 0]
    items = load_han(2000, "test", drop_missing=True, cache=tmp_path)
    assert items.labels.tolist() == [1, 0]
    np.testing.assert_array_equal(items.items, np.eye(3)[[0, 2]])


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", SIZES)
def test_the_real_set(n_classes):
    if not all((han.FONTS / font).is_file() for font in han.TRAIN_FONTS + han.TEST_FONTS):
        pytest.skip("the fonts of the Han characters are missing (make fonts)")
    data = load_embeddings(f"han-{n_classes}", None)
    assert data.train.items.shape == (10 * n_classes, 128)
    assert data.test.items.shape == (4 * n_classes, 128)
    assert np.bincount(data.train.labels).tolist() == [10] * n_classes
    stored = read_npz(make_han(n_classes))
    n_missing = [int(stored[f"{part}_missing"].sum()) for part in ("train", "test")]
    assert n_missing == {2000: [232, 266], 20902: [2185, 2558]}[n_classes]
    # Fonts differ less than characters do: the nearest class mean is mostly the right one.
    means = np.zeros((n_classes, 128))
    np.add.at(means, data.train.labels, data.train.items / 10)
    some = np.random.default_rng(0).choice(len(data.test), 1000, replace=False)
    nearness = data.test.items[some] @ means.T - np.square(means).sum(axis=1) / 2
    assert (nearness.argmax(axis=1) == data.test.labels[some]).mean() > 0.55
