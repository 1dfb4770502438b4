"""The two halves of the solver by themselves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from hashcade import code_energy, solve_level
from hashcade.codes import prices, ranking
from hashcade.codes.flow import optimal_codes
from hashcade.codes.prices import arrange_groups, estimate_prices
from hashcade.codes.solve import scratch_for


def compiled(inner):
    """An entry from Python into a kernel that only kernels call."""

    @njit
    def call(*arguments):
        return inner(*arguments)

    return call


_rank_slot = compiled(ranking.rank_slot)
_rank_slot_roughly = compiled(ranking.rank_slot_roughly)
_sell = compiled(prices._sell)
_unpack = compiled(ranking.unpack)


def net_values(scores, order, group_start, slot_price, pair_price):
    """Score minus price, straight from the definition."""
    group = np.empty(len(scores), int)
    for h in range(len(group_start) - 1):
        group[order[group_start[h] : group_start[h + 1]]] = h
    return scores - np.maximum(slot_price, pair_price)[group]


def random_market(rng):
    n_classes, width = rng.integers(2, 90), rng.integers(2, 40)
    scores = rng.normal(size=(n_classes, width))
    if rng.random() < 0.3:
        scores = np.round(scores)
    sparsity = int(rng.integers(1, width))
    groups = rng.integers(0, rng.integers(1, n_classes + 1), n_classes)
    order, group_start = arrange_groups(groups)
    steps = rng.choice([0.01, 0.2, 2.0, 100.0], 2)
    return groups, (scores, sparsity, order, group_start, *steps)


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 1.0, 30.0]))
@settings(deadline=None)
def test_any_prices_lead_to_the_same_energy(seed, spread):
    """The exact half needs no help: prices from nowhere only cost it time."""
    rng = np.random.default_rng(seed)
    groups, market = random_market(rng)
    scores, sparsity, order, group_start, sibling_step, collision_step = market
    n_groups, width = len(group_start) - 1, scores.shape[1]
    slot_price = rng.normal(scale=spread, size=width)
    pair_price = rng.normal(scale=spread, size=(n_groups, width))
    pair_price[rng.random((n_groups, width)) < 0.5] = -np.inf
    pair_price[0] = -np.inf
    net = net_values(scores, order, group_start, slot_price, pair_price)
    choice = np.ascontiguousarray(np.argsort(-net, axis=1, kind="stable")[:, : sparsity + 1])
    scratch = scratch_for(*scores.shape, sparsity)
    codes, _ = optimal_codes(*market, slot_price.copy(), pair_price.copy(), choice, *scratch)
    problem = {
        "sibling_groups": groups,
        "sibling_penalty": sibling_step / 2,
        "collision_penalty": collision_step / 2,
    }
    expected = code_energy(solve_level(scores, sparsity=sparsity, **problem), scores, **problem)
    assert (codes.sum(axis=1) == sparsity).all()
    assert code_energy(codes, scores, **problem) == pytest.approx(expected, rel=1e-12, abs=1e-9)


@given(st.integers(0, 2**32), st.integers(0, 3), st.integers(0, 3))
@settings(deadline=None)
def test_choices_are_the_best_slots_at_the_estimated_prices(seed, corrections, sweeps):
    """What the exact half relies on: it takes the choices as optimal for the prices."""
    _, market = random_market(np.random.default_rng(seed))
    scores, sparsity, order, group_start, *_ = market
    scratch, _ = scratch_for(*scores.shape, sparsity)
    slot_price, pair_price, choice = estimate_prices(*market, corrections, sweeps, scratch)
    net = net_values(scores, order, group_start, slot_price, pair_price)
    expected = -np.sort(-net, axis=1)[:, : sparsity + 1]
    np.testing.assert_allclose(np.take_along_axis(net, choice, axis=1), expected, atol=1e-12)
    assert all(len(set(row)) == sparsity + 1 for row in choice.tolist())
    assert (pair_price[0] == -np.inf).all()


def test_sweeps_leave_little_to_search_for():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(512, 128)) / np.sqrt(128)
    market = (scores, 1, np.arange(512), np.array([0, 512]), 0.0, 1.0)
    scratch = scratch_for(512, 128, 1)
    searches = [
        optimal_codes(
            *market, *estimate_prices(*market, corrections, sweeps, scratch[0]), *scratch
        )[1]
        for corrections, sweeps in [(0, 0), (4, 0), (0, 3)]
    ]
    assert searches[1] < searches[0] / 2
    assert searches[2] < searches[0] / 4


@pytest.mark.parametrize("collision_step", [1e-3, 0.1, 1.0, 100.0])
def test_corrections_help_whatever_the_penalty(collision_step):
    """Small penalties leave many slots empty: supply follows the price, it is not given."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(256, 256)) + rng.normal(size=256)  # some slots are liked by all
    market = (scores, 1, np.arange(256), np.array([0, 256]), 0.0, collision_step)
    scratch = scratch_for(256, 256, 1)
    level, corrected = (
        optimal_codes(*market, *estimate_prices(*market, n, 0, scratch[0]), *scratch)[1]
        for n in (0, 6)
    )
    assert corrected < max(level, 10)


@pytest.mark.parametrize("n_classes", [1, 7, 64, 333])
@pytest.mark.parametrize("n_kept", [1, 2, 5])
def test_ranking_all_classes_abreast_is_a_sort(n_classes, n_kept):
    rng = np.random.default_rng(n_classes)
    columns = np.round(rng.normal(size=(12, n_classes)), 1)  # with ties
    value = np.full((n_kept, n_classes), -np.inf)
    choice = np.empty((n_kept, n_classes), np.int64)
    for q in range(12):
        _rank_slot(columns[q].copy(), q, value, choice, np.empty(n_classes, np.int64))
    np.testing.assert_array_equal(value, -np.sort(-columns, axis=0)[:n_kept])
    np.testing.assert_array_equal(np.take_along_axis(columns, choice, axis=0), value)
    assert all(len(set(slots)) == n_kept for slots in choice.T.tolist())


@pytest.mark.parametrize("width", [2, 3, 16, 100])
def test_rough_ranking_finds_the_best_slots(width):
    columns = np.random.default_rng(width).normal(size=(width, 333))
    value = np.full((2, 333), -np.inf)
    choice = np.empty((2, 333), np.int64)
    n_bits = (width - 1).bit_length()
    for q in range(width):
        net = columns[q].copy()
        _rank_slot_roughly(net, net.view(np.int64), q, n_bits, value)
    _unpack(value.view(np.int64), n_bits, choice)
    np.testing.assert_array_equal(choice, np.argsort(-columns, axis=0)[:2])
    np.testing.assert_allclose(value, -np.sort(-columns, axis=0)[:2], rtol=1e-12)


@pytest.mark.parametrize("n_keys", [0, 1, 20, 24, 25, 200])
def test_a_sale_serves_the_keys_above_the_cost_of_the_last_unit(n_keys):
    rng = np.random.default_rng(n_keys)
    for step in [0.01, 0.3, 5.0]:
        keys = rng.normal(loc=2.0, size=n_keys)
        ranked = np.sort(keys)[::-1]
        n_sold = int((ranked > step * np.arange(n_keys)).cumprod().sum())
        sold, lowest_sold, highest_unsold = _sell(keys.copy(), n_keys, step)
        assert sold == n_sold
        assert lowest_sold == (ranked[n_sold - 1] if n_sold else np.inf)
        assert highest_unsold == (ranked[n_sold] if n_sold < n_keys else -np.inf)


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), max_size=40))
@settings(deadline=None)
def test_groups_are_arranged_side_by_side(numbers):
    groups = np.array(numbers, np.int64)
    order, start = arrange_groups(groups)
    assert sorted(order) == list(range(len(groups)))
    assert start[0] == 0
    assert start[-1] == len(groups)
    alone = groups[order[: start[1]]]
    assert all((groups == g).sum() == 1 for g in alone)
    for h in range(1, len(start) - 1):
        members = order[start[h] : start[h + 1]]
        assert len(members) >= 2
        np.testing.assert_array_equal(members, np.flatnonzero(groups == groups[members[0]]))
