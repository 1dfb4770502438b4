import pickle

import numpy as np
import pytest

from experiments.datasets.imagenet32 import load_imagenet32
from hashcade.errors import DataError

NAMES = "n01 1 kit_fox\nn02 2 crane\nn03 3 crane\n"


@pytest.fixture
def batches():
    rng = np.random.default_rng(1)
    files = [*(f"train_data_batch_{i}" for i in range(1, 11)), "val_data"]
    return {
        name: {
            "data": rng.integers(0, 256, (i % 3 + 1, 3072), dtype=np.uint8),
            "labels": (rng.integers(1, 4, i % 3 + 1)).tolist(),
            "mean": np.zeros(3072),
        }
        for i, name in enumerate(files)
    }


@pytest.fixture
def folder(batches, tmp_path):
    for name, batch in batches.items():
        (tmp_path / name).write_bytes(pickle.dumps(batch))
    (tmp_path / "map_clsloc.txt").write_text(NAMES)
    return tmp_path


def test_batches_are_joined_in_the_order_of_their_numbers(folder, batches):
    items = load_imagenet32(folder)
    train = [batches[f"train_data_batch_{i}"] for i in range(1, 11)]
    planes = np.concatenate([batch["data"] for batch in train])
    assert items.items.shape == (len(planes), 32, 32, 3)
    for row, y, x, colour in [(0, 0, 0, 0), (7, 31, 2, 1), (len(planes) - 1, 4, 30, 2)]:
        assert items.items[row, y, x, colour] == planes[row, 1024 * colour + 32 * y + x]
    np.testing.assert_array_equal(items.items[..., 1].reshape(-1, 1024), planes[:, 1024:2048])
    assert items.labels.tolist() == [n - 1 for batch in train for n in batch["labels"]]
    assert items.class_names == ("kit_fox", "crane (n02)", "crane (n03)")


def test_test_means_val(folder, batches):
    for split in ("val", "test"):
        items = load_imagenet32(folder, split)
        assert (items.labels + 1).tolist() == batches["val_data"]["labels"]


def test_without_names_classes_are_called_by_their_numbers(folder, tmp_path):
    (folder / "map_clsloc.txt").rename(folder / "elsewhere.txt")
    items = load_imagenet32(folder)
    assert items.class_names == (1, 2, 3)
    assert items.original_labels() == (items.labels + 1).tolist()
    named = load_imagenet32(folder, names=folder / "elsewhere.txt")
    assert named.class_names[0] == "kit_fox"


def test_labels_may_be_an_array(folder, batches):
    batch = batches["val_data"]
    batch["labels"] = np.array(batch["labels"], np.uint16)
    for protocol in (2, 4, 5):
        (folder / "val_data").write_bytes(pickle.dumps(batch, protocol))
        assert load_imagenet32(folder, "val").labels.tolist() == (batch["labels"] - 1).tolist()


def test_missing_batches_are_named(folder):
    (folder / "train_data_batch_3").unlink()
    (folder / "train_data_batch_10").unlink()
    with pytest.raises(DataError, match="no train_data_batch_3, train_data_batch_10"):
        load_imagenet32(folder)
    with pytest.raises(DataError, match="val_data: is not a folder; unpack"):
        load_imagenet32(folder / "val_data")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [0] * 2}, "labels must be from 0 to 2, not so in rows 0, 1"),
        ({"labels": [1, 4]}, "labels must be from 0 to 2, not so in row 1"),
        ({"labels": [1]}, "val_data: has 2 images and 1 labels"),
        ({"labels": [[1], [2]]}, "labels must be a list of integers"),
        ({"labels": [[1], [2, 3]]}, "labels must be a list of integers"),
        ({"labels": ["a", "b"]}, "labels must be a list of integers"),
        ({"data": np.zeros((2, 768), np.uint8)}, "768 numbers per image, must be 3072"),
        ({"data": None}, "data is NoneType, must be uint8"),
        ({"data": np.zeros((0, 3072), np.uint8), "labels": []}, "must be a list of integers"),
    ],
)
def test_other_content_is_refused(folder, batches, change, message):
    batch = batches["val_data"] | change
    (folder / "val_data").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=message):
        load_imagenet32(folder, "val")


def test_missing_keys_and_damage_are_named(folder, batches):
    (folder / "val_data").write_bytes(pickle.dumps({"images": 1}))
    with pytest.raises(DataError, match="has the keys images; data, labels is missing"):
        load_imagenet32(folder, "val")
    (folder / "val_data").write_bytes(pickle.dumps(batches["val_data"])[:-200])
    with pytest.raises(DataError, match="val_data: not a readable pickle, or damaged"):
        load_imagenet32(folder, "val")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n01 one kit_fox\n", "line 1 is 'n01 one kit_fox', must be like"),
        ("n01 1 a\nn02 1 b\n", "line 2 gives class 1 a second time"),
        ("n01 1 a\n\nn02 3 b\n", "has 2 classes, not numbered from 1 to 2"),
    ],
)
def test_a_wrong_list_of_names_is_refused(folder, text, message):
    (folder / "map_clsloc.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        load_imagenet32(folder, "val")


def test_settings_are_checked(folder):
    with pytest.raises(ValueError, match="split='all' must be 'train' or 'val'"):
        load_imagenet32(folder, "all")
