"""The losses against loops over pairs and triples that follow the definitions word by word."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_metric_learning.distances import DotProductSimilarity, LpDistance
from pytorch_metric_learning.losses import NPairsLoss, TripletMarginLoss
from pytorch_metric_learning.reducers import MeanReducer

from hashcade.learn import hash_npairs_loss, hash_triplet_loss, npairs_loss, triplet_loss
from hashcade.learn.losses import masked_l1_distances, mine_semi_hard

# ------------------------------------------------------------------------------ naive versions


def naive_semi_hard(distance, labels, margin):
    """``distance(i, j)`` is a tensor with a gradient; labels are a list."""
    n = len(labels)
    terms = []
    for a in range(n):
        negatives = [distance(a, j) for j in range(n) if labels[j] != labels[a]]
        for p in range(n):
            if p == a or labels[p] != labels[a] or not negatives:
                continue
            farther = [d for d in negatives if d > distance(a, p)]
            negative = min(farther) if farther else max(negatives)
            terms.append(torch.relu(margin + distance(a, p) - negative))
    return sum(terms) / len(terms) if terms else torch.zeros(())


def naive_triplet(x, labels, margin):
    unit = [row / row.norm() for row in x]
    return naive_semi_hard(lambda i, j: ((unit[i] - unit[j]) ** 2).sum(), labels, margin)


def naive_hash_triplet(x, codes, labels, margin):
    def distance(i, j):
        slots = [s for s in range(x.shape[1]) if codes[i, s] or codes[j, s]]
        return sum(abs(x[i, s] - x[j, s]) for s in slots)

    return naive_semi_hard(distance, labels, margin)


def naive_npairs(anchors, positives, labels, regularization, codes=None):
    n, width = anchors.shape
    loss = 0
    for i in range(n):
        similar = [
            sum(
                anchors[i, s] * positives[j, s]
                for s in range(width)
                if codes is None or codes[i, s] or codes[j, s]
            )
            for j in range(n)
        ]
        # codes without an active slot would leave an empty sum, a plain 0
        similar = torch.stack([torch.as_tensor(v, dtype=anchors.dtype) for v in similar])
        log_total = torch.logsumexp(similar, 0)
        mates = [j for j in range(n) if labels[j] == labels[i]]
        loss = loss + sum(log_total - similar[j] for j in mates) / len(mates)
    lengths = sum((row * row).sum() for row in [*anchors, *positives])
    return loss / n + 0.25 * regularization * lengths / n


def random_codes(generator, n, width, sparsity):
    codes = torch.zeros(n, width, dtype=torch.bool)
    for row in codes:
        row[torch.randperm(width, generator=generator)[:sparsity]] = True
    return codes


def assert_same(fast, naive, *inputs):
    """Equal in value and in the gradient of every input, to 1e-6."""
    values, gradients = [], []
    for function in (fast, naive):
        leaves = [x.clone().requires_grad_() for x in inputs]
        value = function(*leaves)
        values.append(value.detach())
        if value.requires_grad:
            value.backward()
        gradients.append([torch.zeros_like(x) if x.grad is None else x.grad for x in leaves])
    assert values[0].item() == pytest.approx(values[1].item(), abs=1e-6)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


batches = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "labels": st.lists(st.integers(-1, 3), min_size=1, max_size=8),
        "width": st.integers(1, 5),
        "scale": st.sampled_from([0.1, 1.0, 3.0]),
        "margin": st.sampled_from([0.0, 0.3, 2.0]),
    }
)


def draw(batch, n_arrays=1):
    generator = torch.Generator().manual_seed(batch["seed"])
    size = (n_arrays, len(batch["labels"]), batch["width"])
    return generator, batch["scale"] * torch.randn(size, generator=generator, dtype=torch.float64)


@given(batch=batches)
def test_triplet_equals_its_definition(batch):
    _, (x,) = draw(batch)
    labels, margin = batch["labels"], batch["margin"]
    assert_same(
        lambda x: triplet_loss(x, torch.tensor(labels), margin=margin),
        lambda x: naive_triplet(x, labels, margin),
        x,
    )


@given(batch=batches, data=st.data())
def test_hash_triplet_equals_its_definition(batch, data):
    generator, (x,) = draw(batch)
    labels, margin = batch["labels"], batch["margin"]
    sparsity = data.draw(st.integers(1, batch["width"]))
    codes = random_codes(generator, *x.shape, sparsity)
    assert_same(
        lambda x: hash_triplet_loss(x, codes, torch.tensor(labels), margin=margin),
        lambda x: naive_hash_triplet(x, codes, labels, margin),
        x,
    )


@given(batch=batches, regularization=st.sampled_from([0.0, 0.003, 1.0]))
def test_npairs_equals_its_definition(batch, regularization):
    _, (anchors, positives) = draw(batch, 2)
    labels = batch["labels"]
    assert_same(
        lambda a, p: npairs_loss(a, p, torch.tensor(labels), regularization=regularization),
        lambda a, p: naive_npairs(a, p, labels, regularization),
        anchors,
        positives,
    )


@given(batch=batches, regularization=st.sampled_from([0.0, 0.03, 1.0]), data=st.data())
def test_hash_npairs_equals_its_definition(batch, regularization, data):
    generator, (anchors, positives) = draw(batch, 2)
    labels = batch["labels"]
    sparsity = data.draw(st.integers(0, batch["width"]))
    codes = random_codes(generator, *anchors.shape, sparsity)
    assert_same(
        lambda a, p: hash_npairs_loss(
            a, p, codes, torch.tensor(labels), regularization=regularization
        ),
        lambda a, p: naive_npairs(a, p, labels, regularization, codes),
        anchors,
        positives,
    )


# ------------------------------------------------------------------------- by hand, and corners


def test_semi_hard_negative_by_hand():
    # Anchor 0, positive 1 at distance 2; negatives at 1, 2 (not farther), 3 and 5.
    distances = torch.tensor([[0.0, 2.0, 1.0, 2.0, 5.0, 3.0]]).expand(6, 6).clone()
    same = torch.zeros(6, 6, dtype=torch.bool)
    same[:2, :2] = True
    same[2:, 2:] = True
    assert mine_semi_hard(distances, same)[0, 1] == 5  # the nearest that is strictly farther
    distances[0, 1] = 7.0
    assert mine_semi_hard(distances, same)[0, 1] == 4  # none is farther: the farthest


@pytest.mark.parametrize("labels", [[1, 1, 1], [1, 2, 3]], ids=["one class", "no positives"])
def test_a_batch_with_nothing_to_tell_apart_has_no_loss_and_no_gradient(labels):
    x = torch.randn(3, 4, requires_grad=True)
    codes = torch.eye(4, dtype=torch.bool)[:3]
    loss = triplet_loss(x, torch.tensor(labels))
    loss = loss + hash_triplet_loss(x, codes, torch.tensor(labels))
    loss.backward()
    assert loss.item() == 0.0
    assert not x.grad.any()


def test_codes_of_unequal_size_are_refused():
    codes = torch.tensor([[True, False], [True, True]])
    with pytest.raises(ValueError, match=r"codes have \[1, 2\] active slots, must be one number"):
        masked_l1_distances(torch.zeros(2, 2), codes)


def test_masked_npairs_is_the_plain_one_when_every_slot_is_active():
    anchors, positives = torch.randn(2, 6, 5, dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 2, 3, 3])
    codes = torch.ones(6, 5, dtype=torch.bool)
    torch.testing.assert_close(
        hash_npairs_loss(anchors, positives, codes, labels, regularization=0.1),
        npairs_loss(anchors, positives, labels, regularization=0.1),
    )


# -------------------------------------------------------------------- pytorch-metric-learning


@pytest.mark.parametrize("seed", range(5))
def test_npairs_equals_pytorch_metric_learning(seed):
    generator = torch.Generator().manual_seed(seed)
    # One pair per class: there the two definitions are the same.
    anchors, positives = torch.randn(2, 9, 7, generator=generator, dtype=torch.float64)
    labels = torch.arange(9)
    assert_same(
        lambda a, p: npairs_loss(a, p, labels, regularization=0.0),
        lambda a, p: dot_product_npairs()(torch.cat([a, p]), labels.repeat(2), pairs(9)),
        anchors,
        positives,
    )


def dot_product_npairs():
    return NPairsLoss(distance=DotProductSimilarity(normalize_embeddings=False))


def pairs(n):
    """Indices (anchor, positive, anchor, negative) as that library takes them."""
    none = torch.empty(0, dtype=torch.int64)
    return torch.arange(n), torch.arange(n) + n, none, none


def squared_euclidean_triplets(margin):
    return TripletMarginLoss(
        margin=margin,
        distance=LpDistance(power=2, normalize_embeddings=True),
        reducer=MeanReducer(),
    )


@pytest.mark.parametrize("seed", range(5))
def test_triplet_equals_pytorch_metric_learning(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    # One item against all others: there is one negative, so both take the same triplets. (The
    # single item has no positive and is no anchor.)
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 1])
    assert_same(
        lambda x: triplet_loss(x, labels, margin=0.3),
        lambda x: squared_euclidean_triplets(0.3)(x, labels),
        x,
    )


# ------------------------------------------------------------------------------------- memory

MEASURE = """
import re, torch
from hashcade.learn import hash_npairs_loss
def peak():  # kilobytes, the highest so far; unlike ru_maxrss not that of the parent process
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
def run(n, width):
    anchors, positives = (torch.randn(n, width, requires_grad=True) for _ in range(2))
    codes = torch.eye(width, dtype=torch.bool)[torch.arange(n) % width]
    labels = torch.arange(n) % width
    before = peak()
    {call}
    return peak() - before
torch.set_num_threads(2)
run(8, 8)  # libraries are loaded and threads started
print(run(1024, 512))
"""


def measured_megabytes(call):
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc, which this system does not have")
    code = MEASURE.format(call=call)
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    return int(done.stdout) / 1024


def test_npairs_takes_less_than_200_megabytes_above_its_inputs():
    used = measured_megabytes("hash_npairs_loss(anchors, positives, codes, labels).backward()")
    assert used < 200
    assert used > 4  # the matrix of similarities alone: the measurement sees something


def test_the_measurement_would_see_the_large_tensor():
    used = measured_megabytes("torch.zeros(n, n // 4, width).fill_(1.0)")  # a quarter of it
    assert used > 400
