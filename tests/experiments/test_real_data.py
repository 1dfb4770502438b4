"""The loaders on real files, where they are at hand."""

import numpy as np
import pytest

from experiments.datasets.cifar100 import load_cifar100
from experiments.datasets.imagenet32 import load_imagenet32
from experiments.datasets.imagenet_split import imagenet_split
from hashcade.errors import DataError


@pytest.fixture(scope="session")
def cifar100_folder(unpacked):
    return unpacked("cifar-100-python.tar.xz", "cifar-100-python")


@pytest.mark.slow
@pytest.mark.parametrize(("split", "per_class"), [("train", 500), ("test", 100)])
def test_cifar100(cifar100_folder, split, per_class):
    fine = load_cifar100(cifar100_folder, split)
    assert fine.items.shape == (100 * per_class, 32, 32, 3)
    assert np.bincount(fine.labels).tolist() == [per_class] * 100
    assert fine.class_names[:3] == ("apple", "aquarium_fish", "baby")
    assert fine.class_names == tuple(sorted(fine.class_names))
    # The known mean colour of the set: a wrong order of planes or channels would show.
    mean = fine.items.mean(axis=(0, 1, 2)) / 255
    np.testing.assert_allclose(mean, [0.507, 0.487, 0.441], atol=0.01)
    coarse = load_cifar100(cifar100_folder, split, labels="coarse")
    assert np.bincount(coarse.labels).tolist() == [5 * per_class] * 20
    # Every fine class lies in one coarse class.
    assert len(np.unique(fine.labels * 20 + coarse.labels)) == 100


@pytest.fixture(scope="session")
def tiny_imagenet(unpacked):
    return unpacked("tiny-imagenet-32.tar.xz", "tiny-imagenet-32")


@pytest.mark.slow
@pytest.mark.parametrize(("split", "per_class"), [("train", 70), ("val", 30)])
def test_the_sample_of_imagenet32(tiny_imagenet, split, per_class):
    items = load_imagenet32(tiny_imagenet, split)
    assert items.items.shape == (200 * per_class, 32, 32, 3)
    assert np.bincount(items.labels).tolist() == [per_class] * 200
    assert items.class_names[0] == "goldfish"
    # Goldfish are orange: red above green above blue, or the planes were mixed up.
    red, green, blue = items.items[items.labels == 0].mean(axis=(0, 1, 2))
    assert red > green > blue


@pytest.mark.slow
def test_the_split_of_the_sample(tiny_imagenet):
    items = load_imagenet32(tiny_imagenet, "val")
    with pytest.raises(DataError, match=r"187 of the 238 classes .* are missing: tench, electric"):
        imagenet_split(items)
    train, test = imagenet_split(items, on_missing="drop")
    assert (train.n_classes, test.n_classes) == (25, 26)
    assert (len(train), len(test)) == (25 * 30, 26 * 30)
    assert "African elephant" in train.class_names
    assert "goldfish" in test.class_names
    assert not {"Cardigan", "cardigan"} & {*train.class_names, *test.class_names}
