import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.siblings import sibling_metrics
from hashcade import CodeShape

SHAPE = CodeShape(width=3, depth=2)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2)), min_size=2, max_size=12))
def test_against_a_double_loop(classes):
    """One item per class, so a class stands in the bucket of its item."""
    buckets, groups = zip(*classes, strict=True)
    found = sibling_metrics(buckets, range(len(classes)), groups, SHAPE, n_rearrangements=1)
    siblings = related = same = 0
    pairs = list(itertools.combinations(range(len(classes)), 2))
    for a, b in pairs:
        same += groups[a] == groups[b]
        if SHAPE.paths([buckets[a]])[0, 0] == SHAPE.paths([buckets[b]])[0, 0]:
            siblings += 1
            related += groups[a] == groups[b]
    assert found.n_pairs == siblings
    assert found.related == pytest.approx(100 * related / siblings if siblings else 0)
    assert found.chance == pytest.approx(100 * same / len(pairs))


def test_a_class_stands_where_most_of_its_items_are():
    buckets = [0, 0, 8, 1, 1, 1]
    labels = [5, 5, 5, 6, 6, 6]
    metrics = sibling_metrics(buckets, labels, [0] * 6, SHAPE, n_rearrangements=10)
    assert (metrics.n_pairs, metrics.related) == (1, 100.0)


def test_random_trees_are_at_chance_and_sorted_ones_are_not():
    rng = np.random.default_rng(0)
    shape = CodeShape(width=10, depth=2)
    classes = np.arange(100)
    groups = classes // 5
    ordered = sibling_metrics(classes, classes, groups, shape, n_rearrangements=200)
    shuffled = sibling_metrics(rng.permutation(100), classes, groups, shape, n_rearrangements=200)
    assert ordered.chance == pytest.approx(100 * 4 / 99)
    assert ordered.related == pytest.approx(100 * 4 / 9)
    assert ordered.p_value < 0.01
    assert shuffled.related < 10
    assert shuffled.p_value > 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0], [0], [0], CodeShape(width=2, depth=1)), "depth=1 must be >= 2"),
        (([0, 1], [0, 1], [0], SHAPE), r"shapes \(2,\), \(2,\) and \(1,\)"),
        (([0, 1], [0, 0], [0, 1], SHAPE), "class 0 has items of 2 groups"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        sibling_metrics(*arguments)
