"""Batches of n classes × m items; every epoch has all classes and items."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hashcade._validate import checked_count

Ints = npt.NDArray[np.int64]


class ClassSampler:
    """Samples batches of ``classes_per_batch`` classes with ``items_per_class`` items each.

    The items of a class are divided into groups of ``items_per_class``, different ones if it has as
    many, each at least once per epoch. Some are repeated to fill the last group of a class, and
    small classes are repeated to fill batches when only large ones have items left. An epoch
    depends only on ``random_state`` and its number, so a run can resume anywhere.

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
        self._n_groups: Ints = -(-self._sizes // items_per_class)  # groups per class, rounded up
        # A class may not be twice in a batch, so the largest class may need more batches than the
        # number of groups; more than this maximum is never needed.
        n_full = -(-int(self._n_groups.sum()) // self.classes_per_batch)
        self.batches_per_epoch = max(n_full, int(self._n_groups.max()))
        self.repeats_per_epoch = self.batches_per_epoch * self.batch_size - len(values)

    def epoch(self, number: int) -> Ints:
        """Items of an epoch, [batches_per_epoch, batch_size]; the items of a class are adjacent."""
        rng = np.random.default_rng([self._random_state, number])
        groups_left = self._n_groups.copy()
        schedule = np.empty((self.batches_per_epoch, self.classes_per_batch), np.int64)
        for batch in schedule:
            # The classes with most groups left first, ties at random: with this longest-job-first
            # rule the number of batches is sufficient. Classes with none left fill the batch.
            urgency = groups_left + rng.random(len(groups_left))
            order = np.argpartition(-urgency, self.classes_per_batch - 1)
            batch[:] = order[: self.classes_per_batch]
            groups_left[batch] = np.maximum(groups_left[batch] - 1, 0)
        assert not groups_left.any(), "an epoch left items out"
        rng.shuffle(schedule)  # large classes came first: mix again

        # Fill the places of each class (batches, classes_per_batch) with its items.
        m = self.items_per_class
        order = np.argsort(schedule, axis=None, kind="stable")  # places, class by class
        n_groups = np.bincount(schedule.ravel(), minlength=len(self._sizes))
        sampled = np.empty((schedule.size, m), np.int64)
        positions_by_class = np.split(order, np.cumsum(n_groups)[:-1])
        for items, positions in zip(self._items, positions_by_class, strict=True):
            sequence, n_needed = rng.permutation(items), len(positions) * m
            while len(sequence) < n_needed:  # repeat the whole class until all places are filled
                repeats = rng.permutation(items)
                # A group that is not full continues with items that it does not have yet.
                is_used = np.isin(repeats, sequence[len(sequence) // m * m :])
                sequence = np.concatenate([sequence, repeats[~is_used], repeats[is_used]])
            sampled[positions] = sequence[:n_needed].reshape(-1, m)
        return sampled.reshape(len(schedule), self.batch_size)

    def describe(self) -> str:
        """One line about the size of an epoch, and repeated items."""
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

    An epoch depends only on ``random_state`` and its number; its time does not depend on classes.
    """

    def __init__(self, n_items: int, *, batch_size: int, random_state: int = 0) -> None:
        self._n_items, self._random_state = n_items, random_state
        self.batch_size = min(batch_size, n_items)
        self.batches_per_epoch = n_items // self.batch_size

    def epoch(self, number: int) -> Ints:
        """Items of an epoch, [batches_per_epoch, batch_size]; others are in other epochs."""
        order = np.random.default_rng([self._random_state, number]).permutation(self._n_items)
        return order[: self.batches_per_epoch * self.batch_size].reshape(-1, self.batch_size)

    def describe(self) -> str:
        """One line about the size of an epoch."""
        return f"{self.batches_per_epoch:,} batches per epoch of {self.batch_size} items"
