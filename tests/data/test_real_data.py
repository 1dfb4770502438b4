"""The loaders on real files, where they are at hand."""

import numpy as np
import pytest

from hashcade.data import imagenet_split, load, load_cifar100, load_imagenet32, load_npz
from hashcade.errors import DataError


def test_embeddings_of_cifar100(real_data):
    file = real_data / "cifar100_effnetlite0_pca128.npz"
    if not file.is_file():
        pytest.skip(f"no real data: {file} is not there")
    train, test = load_npz(file), load(file, split="test")
    assert train.items.shape == (50_000, 128)
    assert test.items.shape == (10_000, 128)
    assert train.items.dtype == np.float32
    assert np.bincount(train.labels).tolist() == [500] * 100
    assert np.bincount(test.labels).tolist() == [100] * 100


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
    coarse = load(cifar100_folder, split=split, labels="coarse")
    assert np.bincount(coarse.labels).tolist() == [5 * per_class] * 20
    # Every fine class lies in one coarse class.
    assert len(np.unique(fine.labels * 20 + coarse.labels)) == 100


@pytest.mark.slow
def test_cifar100_from_its_archive(real_data, cifar100_folder):
    whole = load(real_data / "cifar-100-python.tar.xz", split="test")
    unpacked = load_cifar100(cifar100_folder, "test")
    np.testing.assert_array_equal(whole.items, unpacked.items)
    assert whole.original_labels() == unpacked.original_labels()


@pytest.mark.slow
def test_cifar100_in_the_binary_layout(cifar100_folder, tmp_path):
    # Written from the python layout, it must have the official checksum of the binary one.
    for split in ("train", "test"):
        fine = load_cifar100(cifar100_folder, split)
        coarse = load_cifar100(cifar100_folder, split, labels="coarse")
        planes = fine.items.transpose(0, 3, 1, 2).reshape(len(fine), -1)
        records = np.column_stack([coarse.labels, fine.labels, planes]).astype(np.uint8)
        (tmp_path / f"{split}.bin").write_bytes(records.tobytes())
        (tmp_path / "fine_label_names.txt").write_text("\n".join(fine.class_names))
        again = load_cifar100(tmp_path, split)
        np.testing.assert_array_equal(again.items, fine.items)
        assert again.original_labels() == fine.original_labels()


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
    items = load(tiny_imagenet, split="val")
    with pytest.raises(DataError, match=r"187 of the 238 classes .* are missing: tench, electric"):
        imagenet_split(items)
    train, test = imagenet_split(items, on_missing="drop")
    assert (train.n_classes, test.n_classes) == (25, 26)
    assert (len(train), len(test)) == (25 * 30, 26 * 30)
    assert "African elephant" in train.class_names
    assert "goldfish" in test.class_names
    assert not {"Cardigan", "cardigan"} & {*train.class_names, *test.class_names}
