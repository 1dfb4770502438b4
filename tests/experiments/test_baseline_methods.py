"""What is special about each method: by hand, by loops, against other implementations."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from experiments.baselines import (
    DCH,
    LSH,
    METHODS,
    VQ,
    Exhaustive,
    Threshold,
    cauchy_cross_entropy,
    cauchy_quantization,
    make_method,
)
from experiments.baselines.base import code_scores
from hashcade import Hasher

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 6)).astype(np.float32)


# -- bits --------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_codes_come_in_the_order_of_the_cheapest_flips(n_bits, seed):
    certainty = np.random.default_rng(seed).integers(-8, 9, (1, n_bits)).astype(np.float32)
    own = [int(value > 0) for value in certainty[0]]
    cost = {}
    for code in itertools.product((0, 1), repeat=n_bits):
        number = int("".join(map(str, code)), 2)
        cost[number] = sum(abs(float(certainty[0, b])) for b in range(n_bits) if code[b] != own[b])
    scores = code_scores(certainty)[0]
    assert [-float(scores[number]) for number in range(2**n_bits)] == [
        cost[number] for number in range(2**n_bits)
    ]


def test_lsh_is_the_side_of_each_hyperplane():
    lsh = LSH(n_bits=4, sparsity=2).fit(X)
    sides = (X - lsh.state_["centre"]) @ lsh.state_["normals"]
    code = ((sides > 0) * [8, 4, 2, 1]).sum(axis=1)
    np.testing.assert_array_equal(lsh.encode(X).bucket_ids[:, 0], code)
    nearest = np.abs(sides).argmin(axis=1)  # the second bucket: across the nearest hyperplane
    np.testing.assert_array_equal(lsh.encode(X).bucket_ids[:, 1], code ^ (8 >> nearest))


def test_lsh_splits_items_evenly_wherever_they_lie():
    moved = X + 100.0
    halves = [(LSH(n_bits=1, random_state=s).fit(moved).encode(moved).bucket_ids == 0).mean()
              for s in range(20)]  # fmt: skip
    assert 0.3 < min(halves) < max(halves) < 0.7
    through_origin = LSH(n_bits=1, centre=False).fit(moved).encode(moved).bucket_ids
    assert len(np.unique(through_origin)) == 1


@pytest.mark.parametrize("kind", [LSH, DCH])
@pytest.mark.parametrize("n_bits", [0, 13, 1.5])
def test_a_number_of_bits_that_cannot_be_is_refused(kind, n_bits):
    with pytest.raises(ValueError, match="n_bits="):
        kind(n_bits=n_bits).fit(X, np.arange(200) % 2)


# -- centroids and dimensions ------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_vq_takes_the_nearest_centroids(offset):
    items = X + np.float32(offset)
    vq = VQ(n_centroids=9, sparsity=3).fit(items)
    gaps = np.linalg.norm(items[:, None].astype(float) - vq.state_["centroids"][None], axis=2)
    np.testing.assert_array_equal(vq.encode(items).bucket_ids, np.argsort(gaps, axis=1)[:, :3])
    np.testing.assert_allclose(-vq.encode(items).scores[:, 0], gaps**2, atol=1e-2)


def test_vq_is_k_means():
    vq = VQ(n_centroids=7, random_state=5, n_init=2).fit(X)
    theirs = KMeans(7, n_init=2, max_iter=50, random_state=5).fit(X)
    np.testing.assert_allclose(vq.state_["centroids"], theirs.cluster_centers_, rtol=1e-5)
    np.testing.assert_array_equal(vq.encode(X).bucket_ids[:, 0], theirs.labels_)


def test_vq_needs_as_many_items_as_centroids():
    with pytest.raises(ValueError, match="n_centroids=9 must be <= 3, the items in X"):
        VQ(n_centroids=9).fit(X[:3])


def test_th_takes_the_largest_numbers():
    th = Threshold(sparsity=2).fit(X)
    assert th.shape_.width == 6
    assert th.encode([[0, 5, 1, 5, -9, 2]]).bucket_ids.tolist() == [
        [1, 3]
    ]  # signs count, sizes do not


# -- Cauchy losses -----------------------------------------------------------------------------


def distance(one, two):
    """Half of n_bits times one minus the cosine."""
    dot = sum(a * b for a, b in zip(one, two, strict=True))
    norms = math.sqrt(sum(a * a for a in one)) * math.sqrt(sum(b * b for b in two))
    return len(one) / 2 * (1 - dot / norms)


def test_distance_of_binary_codes_is_the_hamming_distance():
    assert distance([1, -1, 1, 1], [1, 1, 1, -1]) == pytest.approx(2.0)


@given(st.integers(2, 7), st.integers(0, 2**32 - 1), st.sampled_from([0.5, 2.0, 20.0]))
def test_cross_entropy_agrees_with_a_double_loop(n, seed, gamma):
    rng = np.random.default_rng(seed)
    codes, labels = np.tanh(rng.normal(size=(n, 5))), rng.integers(0, 3, n)
    pairs = list(itertools.combinations(range(n), 2))
    similar = [labels[i] == labels[j] for i, j in pairs]
    total = 0.0
    for (i, j), s in zip(pairs, similar, strict=True):
        d = distance(codes[i], codes[j])
        weight = len(pairs) / similar.count(s)  # |S| / |S_1| or |S| / |S_0|
        total += weight * (s * math.log(d / gamma) + math.log(1 + gamma / d))
    kinds = len(set(similar))  # the weights of all pairs add up to |S| for each kind that is there
    ours = cauchy_cross_entropy(torch.tensor(codes), torch.tensor(labels), gamma=gamma)
    assert float(ours) == pytest.approx(total / len(pairs) / kinds, rel=1e-4)


def test_quantization_agrees_with_its_definition():
    codes = np.array([[0.5, -0.5, 0.5], [1.0, 0.1, -0.1]])
    expected = [math.log(1 + distance(np.abs(row), [1, 1, 1]) / 2.0) for row in codes]
    ours = cauchy_quantization(torch.tensor(codes), gamma=2.0)
    assert float(ours) == pytest.approx(sum(expected) / 2)
    assert expected[0] == pytest.approx(0.0, abs=1e-9)  # only the direction counts


def test_losses_have_finite_gradients_where_logarithms_end():
    codes = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]], requires_grad=True)
    labels = torch.tensor([0, 1, 1])  # equal codes of different classes, and a code of zeros
    loss = cauchy_cross_entropy(codes, labels, gamma=1.0) + cauchy_quantization(codes, gamma=1.0)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(codes.grad).all()
    one = cauchy_cross_entropy(codes[:1], labels[:1], gamma=1.0)  # no pairs at all
    assert float(one.detach()) == 0.0


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (0.01, 50.0)])
def test_dch_gives_classes_codes_of_their_own_wherever_they_lie(scale, offset):
    y = np.arange(320) % 8
    means = np.random.default_rng(3).normal(size=(8, 6)) * 4
    items = means[y] + np.random.default_rng(4).normal(size=(320, 6))
    items = scale * items + offset
    dch = DCH(n_bits=4, steps=300, hidden_size=64, items_per_class=8).fit(items[:160], y[:160])
    buckets = dch.encode(items[160:]).bucket_ids[:, 0]
    home = [np.bincount(buckets[y[160:] == c], minlength=16) for c in range(8)]
    assert sum(int(counts.max()) for counts in home) > 0.9 * 160  # a class stays together
    assert len({int(counts.argmax()) for counts in home}) >= 6  # and classes apart


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"gamma": 0.0}, "gamma=0.0 must be finite and > 0"),
        ({"gamma": -1.0}, "gamma=-1.0 must be finite and > 0"),
        ({"quantization": float("nan")}, "quantization=nan"),
        ({"steps": 0}, "steps=0 must be"),
        ({"learning_rate": -1}, "learning_rate=-1"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"items_per_class": 0}, "items_per_class=0"),
    ],
)
def test_bad_settings_of_dch_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        DCH(**setting).fit(X, np.arange(200) % 2)


def test_dch_needs_labels():
    with pytest.raises(ValueError, match="y is None: DCH learns from labels"):
        DCH().fit(X)


# -- by name ------------------------------------------------------------------------------------


def test_methods_by_name_have_as_many_outputs_as_the_learned_table():
    made = {name: make_method(name, width=32, sparsity=1, random_state=4)
            for name in METHODS}  # fmt: skip
    assert isinstance(made["metric"], Exhaustive)
    assert isinstance(made["th"], Threshold)
    assert (made["lsh"].n_bits, made["dch"].n_bits) == (6, 6)
    assert made["vq"].n_centroids == 64
    assert (made["flat"].width, made["flat"].depth) == (64, 1)
    assert (made["ours"].width, made["ours"].depth, made["ours"].assignment) == (32, 2, "path")
    assert made["ours+"].assignment == "codebook"
    for name in ("lsh", "dch", "vq", "flat", "ours", "ours+"):
        assert made[name].random_state == 4


def test_settings_reach_the_method_and_override_sizes():
    vq = make_method("vq", width=32, n_centroids=100, sparsity=2)
    assert vars(vq) == vars(VQ(n_centroids=100, sparsity=2))
    assert make_method("lsh", width=33, n_bits=4).n_bits == 4
    assert make_method("flat", width=8, loss="triplet").loss == "triplet"
    assert isinstance(make_method("ours", width=8), Hasher)
    assert make_method("ours-r", width=8).remap is False


def test_sizes_and_names_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="width=33 · depth=2 = 66 must be a power of two for lsh"):
        make_method("lsh", width=33)
    with pytest.raises(ValueError, match="name='ivf' must be one of 'metric', 'lsh'"):
        make_method("ivf", width=32)
