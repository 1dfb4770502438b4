from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest

from hashcade import CodeShape, expected_speedup


def enumerated_speedup(shape):
    """Share of all items that meet a fixed query, over every possible item."""
    last = list(combinations(range(shape.width), shape.sparsity))
    upper = list(product(range(shape.width), repeat=shape.depth - 1))
    query_upper, query_last = upper[0], set(last[0])
    meeting = sum(u == query_upper and bool(query_last & set(s)) for u in upper for s in last)
    return Fraction(len(upper) * len(last), meeting)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 2, 3, 5, 6])
def test_exact_value_equals_enumeration(width, depth):
    for sparsity in range(1, width + 1):
        shape = CodeShape(width=width, depth=depth, sparsity=sparsity)
        assert expected_speedup(shape) == float(enumerated_speedup(shape)), shape


def test_exact_value_equals_a_simulation_with_bucket_ids():
    shape = CodeShape(width=8, depth=2, sparsity=2)
    rng = np.random.default_rng(0)
    ids = shape.scores_to_bucket_ids(rng.random((200_000, 2, 8)))
    query, items = ids[0], ids[1:]
    share = (items[:, :, None] == query).any(axis=(1, 2)).mean()
    # Three standard deviations of the simulated share.
    p = 1 / expected_speedup(shape)
    assert share == pytest.approx(p, abs=3 * (p * (1 - p) / len(items)) ** 0.5)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_with_one_active_slot_the_limit_is_exact(depth):
    shape = CodeShape(width=37, depth=depth)
    assert expected_speedup(shape) == expected_speedup(shape, limit=True) == 37.0**depth


def test_limit_is_reached_from_above_as_width_grows():
    ratios = []
    for width in (8, 64, 512, 4096, 2**20):
        shape = CodeShape(width=width, depth=2, sparsity=4)
        assert expected_speedup(shape, limit=True) == width**2 / 16
        ratios.append(expected_speedup(shape) / expected_speedup(shape, limit=True))
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 1.5
    assert 1 < ratios[-1] < 1 + 1e-5


def test_largest_tables_do_not_overflow():
    assert expected_speedup(CodeShape(width=2**31 - 1, depth=2)) == float((2**31 - 1) ** 2)
    assert expected_speedup(CodeShape(width=2000, depth=5, sparsity=1000)) == pytest.approx(2000**4)
