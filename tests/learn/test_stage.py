"""The hash loss of a stage: summed over levels, with or without remapped labels."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hashcade import Hasher
from hashcade.codes import relabel_by_code
from hashcade.learn import hash_npairs_loss, hash_triplet_loss, learning_rate_factor
from hashcade.learn.config import resolve
from hashcade.learn.stages import HashStage


@pytest.mark.parametrize(
    ("schedule", "steps", "falls"),
    [("paper", 70_000, [20_000, 40_000, 60_000]), (6_000, 15_000, [6_000, 12_000]),
     (40_000, 50_000, [40_000])],
)  # fmt: skip
def test_the_rate_falls_to_three_tenths_where_the_paper_says(schedule, steps, falls):
    for n, step in enumerate(falls):
        assert learning_rate_factor(schedule, step - 1, steps) == pytest.approx(0.3**n)
        assert learning_rate_factor(schedule, step, steps) == pytest.approx(0.3 ** (n + 1))
    assert learning_rate_factor(schedule, steps - 1, steps) == pytest.approx(0.3 ** len(falls))


# Four classes, two levels of three slots. At level 1 the classes share slots two by two.
CODES = np.zeros((2, 4, 3), np.bool_)
CODES[0, np.arange(4), [0, 0, 2, 2]] = True
CODES[1, np.arange(4), [0, 1, 1, 0]] = True


def stage_config(loss):
    hasher = Hasher(width=3, loss=loss, hidden_size=0, items_per_class=2, assignment="codebook")
    return resolve(hasher.get_params(), n_classes=4, n_items=40, item_shape=(5,)).stages[-1]


def by_hand(stage, scores, labels_of):
    total = 0.0
    for level in range(2):
        codes = torch.from_numpy(CODES[level])
        labels = torch.as_tensor(labels_of(level))
        if stage.loss == "npairs":
            anchors, positives = scores[0::2, level], scores[1::2, level]
            total += hash_npairs_loss(
                anchors, positives, codes, labels, regularization=stage.regularization
            )
        else:
            total += hash_triplet_loss(
                scores[:, level],
                codes.repeat_interleave(2, dim=0),
                labels.repeat_interleave(2),
                margin=stage.margin,
            )
    return total


def loss_of_codes(config, scores):
    return HashStage(config, model=None, data=None).loss_of_codes(scores, CODES)


@pytest.mark.parametrize("loss", ["npairs", "triplet"])
def test_labels_are_remapped_by_code_unless_switched_off(loss):
    scores = torch.randn(8, 2, 3, generator=torch.Generator().manual_seed(0))
    config = stage_config(loss)
    remapped = by_hand(config, scores, lambda level: relabel_by_code(CODES[level]))
    kept = by_hand(config, scores, lambda level: [0, 1, 2, 3])
    assert abs(remapped - kept) > 1e-3  # the two are told apart
    torch.testing.assert_close(loss_of_codes(config, scores), remapped)
    torch.testing.assert_close(loss_of_codes(replace(config, remap=False), scores), kept)


def test_the_estimator_hands_the_setting_on():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 5)), np.arange(60) % 6
    settings = {"width": 3, "steps": 3, "hidden_size": 0, "assignment": "codebook"}
    ours = Hasher(**settings).fit(X, y).scores(X)
    without = Hasher(**settings, remap=False).fit(X, y).scores(X)
    assert (ours != without).any()
