import re

import numpy as np
import pytest

from experiments.datasets.imagenet_split import imagenet_split, imagenet_split_classes
from hashcade.data import LabelledItems
from hashcade.errors import DataError

TRAIN, TEST = imagenet_split_classes()
OTHERS = ["kit fox", "cardigan", "crane (n02012849)", "crane (n03126707)"]


def items_of(names, per_class=2):
    labels = np.tile(np.arange(len(names)), per_class)
    return LabelledItems.from_arrays(
        labels[:, None].astype(float), labels, class_names=names, source="x"
    )


def test_the_lists_have_119_different_classes_each():
    assert len(TRAIN) == len(TEST) == 119
    classes = [*TRAIN, *TEST]
    assert len({c.name for c in classes}) == len({c.synset for c in classes}) == 238
    assert all(re.fullmatch(r"n\d{8}", c.synset) for c in classes)
    # The corners of the table in supplement D, and a row from its middle.
    assert [c.name for c in TRAIN[:4]] == ["tench", "electric ray", "cock", "jay"]
    assert [c.name for c in TEST[:4]] == ["goldfish", "stingray", "hen", "magpie"]
    assert [c.name for c in TRAIN[-3:]] == ["eggnog", "alp", "lakeside"]
    assert [c.name for c in TEST[-3:]] == ["cup", "volcano", "seashore"]
    at = [c.name for c in TRAIN].index("hamper")
    assert [c.name for c in TRAIN[at : at + 2]] == ["hamper", "bicycle-built-for-two"]
    assert [c.name for c in TEST[at : at + 2]] == ["shopping basket", "mountain bike"]


SPELLINGS = {
    "as in the paper": lambda c: c.name,
    "underscores": lambda c: c.name.replace(" ", "_"),
    "synonyms": lambda c: f"{c.name}, something else, {c.name}",
    "synset": lambda c: c.synset,
    "synset and name": lambda c: f"{c.synset}_{c.name}",
    "synset, blank, synonyms": lambda c: f"{c.synset} {c.name}, another",
    "name and synset": lambda c: f"{c.name} ({c.synset})",
    "title case": lambda c: c.name if c.name == "Cardigan" else c.name.title(),
    "no hyphens": lambda c: c.name.replace("-", " "),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_classes_are_found_however_they_are_spelled(spelling):
    spelled = SPELLINGS[spelling]
    names = [*OTHERS, *(spelled(c) for c in TEST), *(spelled(c) for c in TRAIN[::-1])]
    train, test = imagenet_split(items_of(names))
    assert train.class_names == tuple(c.name for c in TRAIN)
    assert test.class_names == tuple(c.name for c in TEST)
    assert len(train) == len(test) == 2 * 119
    for part, classes in ((train, TRAIN), (test, TEST)):
        for label, item in zip(part.labels, part.items[:, 0], strict=True):
            assert names[int(item)] == spelled(classes[label])


def test_missing_classes_are_listed():
    names = [c.name for c in (*TRAIN, *TEST) if c.name not in ("tench", "wok")]
    with pytest.raises(DataError, match=r"x: 2 of the 238 classes .* are missing: tench, wok$"):
        imagenet_split(items_of(names))
    train, test = imagenet_split(items_of(names), on_missing="drop")
    assert (train.n_classes, test.n_classes) == (118, 118)
    assert train.class_names[0] == "electric ray"
    assert sorted(set(train.labels.tolist())) == list(range(118))


def test_clothing_is_not_taken_for_the_dog():
    names = [*(c.name for c in (*TRAIN, *TEST) if c.name != "Cardigan"), "cardigan"]
    with pytest.raises(DataError, match=r"are missing: Cardigan$"):
        imagenet_split(items_of(names))


def test_a_name_for_two_classes_is_refused():
    names = [*(c.name for c in (*TRAIN, *TEST)), "tench, the other one"]
    with pytest.raises(DataError, match="tench may be any of the classes 'tench', 'tench, the"):
        imagenet_split(items_of(names))


def test_other_data_has_none_of_the_classes():
    with pytest.raises(DataError, match="238 of the 238 classes"):
        imagenet_split(items_of([1, 2, 3]))
    with pytest.raises(DataError, match="no items of these classes"):
        imagenet_split(items_of([1, 2, 3]), on_missing="drop")
    with pytest.raises(ValueError, match="on_missing='no' must be 'raise' or 'drop'"):
        imagenet_split(items_of([1]), on_missing="no")
