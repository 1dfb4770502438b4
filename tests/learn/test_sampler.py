"""What the sampler guarantees, for classes of any size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashcade.learn import ClassSampler

class_sizes = st.lists(st.one_of(st.integers(1, 4), st.integers(1, 40)), min_size=1, max_size=12)


@st.composite
def samplers(draw):
    sizes = draw(class_sizes)
    numbers = draw(
        st.lists(st.integers(-99, 10**12), min_size=len(sizes), max_size=len(sizes), unique=True)
    )
    labels = np.repeat(numbers, sizes)
    np.random.default_rng(draw(st.integers(0, 99))).shuffle(labels)
    n, m = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    seed = draw(st.integers(0, 2**32))
    sampler = ClassSampler(labels, classes_per_batch=n, items_per_class=m, random_state=seed)
    return sampler, labels, min(n, len(sizes)), m


@given(case=samplers(), number=st.integers(0, 50))
def test_an_epoch_uses_every_item_in_batches_of_n_classes_and_m_items(case, number):
    sampler, labels, n, m = case
    batches = sampler.epoch(number)
    assert batches.shape == (sampler.batches_per_epoch, n * m)
    assert set(batches.ravel()) == set(range(len(labels)))  # every item, so every class
    for batch in labels[batches].reshape(-1, n, m):
        assert (batch == batch[:, :1]).all()  # m items of one class side by side
        assert len(set(batch[:, 0])) == n  # of n different classes
    sizes = dict(zip(*np.unique(labels, return_counts=True), strict=True))
    for hand in batches.reshape(-1, m):  # different items, if the class has as many
        assert len(set(hand)) == min(m, sizes[labels[hand[0]]])


@given(case=samplers())
def test_repeats_are_counted_and_are_no_more_than_needed(case):
    sampler, labels, n, m = case
    batches = sampler.epoch(0)
    assert sampler.repeats_per_epoch == batches.size - len(labels)
    sizes = np.unique(labels, return_counts=True)[1]
    hands = [-(-size // m) for size in sizes]
    # Two lower bounds on the batches of any schedule with these guarantees.
    assert len(batches) == max(max(hands), -(-sum(hands) // n))
    uses = np.bincount(batches.ravel(), minlength=len(labels))
    for label in np.unique(labels):  # repeats are spread over the class
        own = uses[labels == label]
        assert own.max() - own.min() <= 1
    assert ("no item is repeated" in sampler.describe()) == (uses.max() == 1)


@given(case=samplers(), number=st.integers(0, 50))
def test_an_epoch_depends_on_seed_and_number_alone(case, number):
    sampler, *_ = case
    first = sampler.epoch(number)
    sampler.epoch(number + 1)
    np.testing.assert_array_equal(sampler.epoch(number), first)


def test_epochs_and_seeds_differ():
    labels = np.repeat(np.arange(10), 20)
    settings = {"classes_per_batch": 4, "items_per_class": 2}
    one = ClassSampler(labels, random_state=1, **settings)
    two = ClassSampler(labels, random_state=2, **settings)
    assert (one.epoch(0) != one.epoch(1)).any()
    assert (one.epoch(0) != two.epoch(0)).any()


def test_balanced_classes_need_no_repeats_and_mix():
    labels = np.repeat(np.arange(100), 50)
    sampler = ClassSampler(labels, classes_per_batch=25, items_per_class=2)
    assert sampler.repeats_per_epoch == 0
    assert (
        sampler.describe() == "100 batches per epoch of 25 classes × 2 items; no item is repeated"
    )
    together = np.zeros((100, 100), int)
    for batch in labels[sampler.epoch(0)][:, ::2]:
        together[np.ix_(batch, batch)] += 1
    # Every class shares batches with nearly all others: the classes are not dealt in blocks.
    assert (together > 0).mean() > 0.95


def test_single_items_are_repeated_and_it_is_said():
    sampler = ClassSampler([5, 5, 5, 6], classes_per_batch=64, items_per_class=2)
    assert sampler.classes_per_batch == 2
    for batch in sampler.epoch(3):
        assert list(batch).count(3) == 2  # the only item of class 6
    assert sampler.describe().endswith(
        "4 of 8 draws (50.0 %) repeat an item (classes have 1 to 3 items)"
    )


@pytest.mark.parametrize(
    ("labels", "settings", "message"),
    [
        ([], {}, r"labels has shape \(0,\), must be \(n,\) with n >= 1"),
        ([[1]], {}, r"labels has shape \(1, 1\), must be \(n,\)"),
        ([1], {"items_per_class": 0}, "items_per_class=0 must be >= 1"),
        ([1], {"classes_per_batch": -1}, "classes_per_batch=-1 must be >= 1"),
    ],
)
def test_bad_input_is_refused(labels, settings, message):
    with pytest.raises(ValueError, match=message):
        ClassSampler(labels, **{"classes_per_batch": 2, "items_per_class": 2, **settings})
