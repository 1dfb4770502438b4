"""Batches of n classes × m items, in which no class and no item is left out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hashcade._validate import checked_count

Ints = npt.NDArray[np.int64]


class ClassSampler:
    """Deals items into batches of ``classes_per_batch`` classes with ``items_per_class`` each.

    Items of a class are dealt in hands of ``items_per_class``, different ones if it has as many,
    each at least once per epoch. Some are repeated to fill the last hand of a class, and small
    classes are dealt again to fill batches when only large ones have items left. An epoch depends
    on ``random_state`` and its number alone, so a run can resume anywhere.

    Examples
    --------
    >>> sampler = ClassSampler([7, 7, 7, 7, 9, 9], classes_per_batch=2, items_per_class=2)
    >>> print(sampler.describe())
    2 batches per epoch of 2 classes × 2 items; 2 of 8 draws (25.0 %) repeat an item \
(classes have 2 to 4 items)
    """

    def __init__(
        self, labels: npt.ArrayLike, *, classes_per_batch: int, items_per_class: int,
        random_state: int = 0,
    ) -> None:  # fmt: skip
        values = np.asarray(labels)
        if values.ndim != 1 or len(values) == 0:
            raise ValueError(f"labels has shape {values.shape}, must be (n,) with n >= 1")
        checked_count("classes_per_batch", classes_per_batch)
        checked_count("items_per_class", items_per_class)
        _, class_of_item, sizes = np.unique(values, return_inverse=True, return_counts=True)
        self._sizes: Ints = sizes.astype(np.int64)  # (n_classes,)
        items = np.argsort(class_of_item, kind="stable").astype(np.int64)
        self._items: list[Ints] = np.split(items, np.cumsum(sizes)[:-1])  # of each class
        self._random_state = random_state
        self.classes_per_batch = min(classes_per_batch, len(sizes))
        self.items_per_class = items_per_class
        self.batch_size = self.classes_per_batch * items_per_class
        self._hands: Ints = -(-self._sizes // items_per_class)  # per class, rounded up
        # No class may come twice in a batch, so the largest class may need more batches than
        # the number of hands alone; more than this maximum is never needed.
        evenly = -(-int(self._hands.sum()) // self.classes_per_batch)
        self.batches_per_epoch = max(evenly, int(self._hands.max()))
        self.repeats_per_epoch = self.batches_per_epoch * self.batch_size - len(values)

    def epoch(self, number: int) -> Ints:
        """Items of an epoch, [batches_per_epoch, batch_size]; the items of a class side by side."""
        rng = np.random.default_rng([self._random_state, number])
        left = self._hands.copy()
        schedule = np.empty((self.batches_per_epoch, self.classes_per_batch), np.int64)
        for batch in schedule:
            # Most hands left first, at random among equals: so the number of batches suffices,
            # by the rule that fits the longest jobs first. A class with none left fills up.
            urgency = left + rng.random(len(left))
            order = np.argpartition(-urgency, self.classes_per_batch - 1)
            batch[:] = order[: self.classes_per_batch]
            left[batch] = np.maximum(left[batch] - 1, 0)
        assert not left.any(), "an epoch left items out"
        rng.shuffle(schedule)  # large classes were dealt early: mix again

        # Items in the places of their classes (batches, classes_per_batch).
        m = self.items_per_class
        order = np.argsort(schedule, axis=None, kind="stable")  # places, class by class
        hands_of = np.bincount(schedule.ravel(), minlength=len(self._sizes))
        dealt = np.empty((schedule.size, m), np.int64)
        places_of = np.split(order, np.cumsum(hands_of)[:-1])
        for items, places in zip(self._items, places_of, strict=True):
            drawn, n_drawn = rng.permutation(items), len(places) * m
            while len(drawn) < n_drawn:  # the whole class again, until all places are filled
                again = rng.permutation(items)
                # The hand that was begun continues with other items than it has.
                begun = np.isin(again, drawn[len(drawn) // m * m :])
                drawn = np.concatenate([drawn, again[~begun], again[begun]])
            dealt[places] = drawn[:n_drawn].reshape(-1, m)
        return dealt.reshape(len(schedule), self.batch_size)

    def describe(self) -> str:
        """One line: the size of an epoch, and what is repeated in it."""
        size = f"{self.classes_per_batch} classes × {self.items_per_class} items"
        text = f"{self.batches_per_epoch:,} batches per epoch of {size}"
        repeats, draws = self.repeats_per_epoch, self.batches_per_epoch * self.batch_size
        if repeats == 0:
            return f"{text}; no item is repeated"
        share = f"{repeats:,} of {draws:,} draws ({100 * repeats / draws:.1f} %)"
        sizes = f"{self._sizes.min()} to {self._sizes.max()}"
        return f"{text}; {share} repeat an item (classes have {sizes} items)"


class ShuffledItems:
    """Batches of items in random order, each item at most once per epoch; of any class.

    An epoch depends on ``random_state`` and its number alone, and takes no time per class.
    """

    def __init__(self, n_items: int, *, batch_size: int, random_state: int = 0) -> None:
        self._n_items, self._random_state = n_items, random_state
        self.batch_size = min(batch_size, n_items)
        self.batches_per_epoch = n_items // self.batch_size

    def epoch(self, number: int) -> Ints:
        """Items of an epoch, [batches_per_epoch, batch_size]; the rest comes in other epochs."""
        order = np.random.default_rng([self._random_state, number]).permutation(self._n_items)
        return order[: self.batches_per_epoch * self.batch_size].reshape(-1, self.batch_size)

    def describe(self) -> str:
        """One line: the size of an epoch."""
        return f"{self.batches_per_epoch:,} batches per epoch of {self.batch_size} items"
