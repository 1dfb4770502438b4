"""The estimator: from labelled items to buckets and vectors."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hashcade.codes._check import checked_count, checked_penalty, checked_seed
from hashcade.errors import NotFittedError
from hashcade.index import Encoded
from hashcade.learn._adapt import adapt_model
from hashcade.learn._base import base_weights
from hashcade.learn._codebook import assign_to_book
from hashcade.learn._display import Display
from hashcade.learn._estimator import EstimatorHabits
from hashcade.learn._inputs import (
    checked_device,
    checked_embeddings,
    checked_images,
    checked_labels,
    checked_views,
    data_digest,
)
from hashcade.learn._model import HashModel
from hashcade.learn._networks import takes_images
from hashcade.learn._plan import Plan, make_plan
from hashcade.learn._refine import most_codes, refine_model
from hashcade.learn._settings import Settings
from hashcade.learn._split import stratified_split
from hashcade.learn._storage import load_hasher, save_hasher
from hashcade.learn._trainer import TrainingData, in_chunks
from hashcade.learn._tune import checked_trials
from hashcade.learn._workshop import Workshop


class Hasher(Settings, EstimatorHabits):
    """Learns which bucket an item belongs to.

    Give it embeddings that you have, and it learns a hash head on top of them, in seconds to
    minutes on a CPU. Give it images and a backbone, and it first trains the network, then
    fine-tunes a copy of it with a hash head.

    Parameters
    ----------
    width
        Slots per level. None: from the number of classes.
    depth
        Levels; the table has ``width ** depth`` buckets.
    sparsity
        Active slots at the last level: an item lies in this many buckets.
    loss
        ``"npairs"`` or ``"triplet"``.
    backbone
        None for embeddings as they are. ``"mlp"`` for vectors that another network made: a base
        network of one hidden layer is trained on them. For images ``"stride"`` (made for CPUs) or
        ``"nin"`` (the paper's). Or a ``torch.nn.Module`` to float[n, features], from
        float[n, 3, height, width] or float[n, size].
    assignment
        How an item finds its bucket. ``"codebook"``: of the codes that were given to classes, the
        one with the largest sum of slot scores over the levels; training goes on for
        ``joint_steps`` with this in view. ``"path"``: by its best slot at each level, as in the
        paper.
    embedding_size
        Size of the vectors for re-ranking. None: without a backbone the vectors that were given,
        else 64 (npairs) or 256 (triplet). With a number, embeddings get a learned projection.
    hidden_size
        Units of the hidden layer: without a backbone of the hash head, with ``"mlp"`` of the
        network, on which the head is linear. None: 512; with other backbones none.
    steps, base_steps, joint_steps
        Batches of the hash stage, the base stage and the joint stage. None: from the size of the
        data; the joint stage has as many as the hash stage. ``joint_steps=0`` makes the code book
        and trains no more.
    schedule
        ``"one-cycle"`` for short runs, ``"paper"`` (falls to 0.3 of what it was, three times), a
        number (does so after every so many steps), or ``"constant"``.
    rate
        Peak learning rate of the new layers. None: 3e-3, but 1e-3 for networks that take images.
    base_rate
        Factor on it for the network below them in the hash stage; 0 freezes the network.
    sibling_penalty, collision_penalty, regulariser
        Of the code problem, and of the npairs loss in the hash stage. None: by loss and sparsity.
    margin
        Of the triplet loss.
    remap
        Whether classes with equal codes at a level count as one class there, as in the paper.
        False keeps the labels (the paper's ablation "Ours-r").
    classes_per_batch, items_per_class
        Composition of a batch. ``items_per_class`` must be even for npairs; None: as many as make
        a batch of 128, but no more than a class has on average.
    augment
        What is done to images at random while training: ``"crop-mirror"``, ``"crop"`` (for
        letters, digits and whatever is not its mirror image) or ``"none"``.
    dropout
        Part of the values of an embedding, drawn anew at each step, that the hash network does
        not see while it is trained: a remedy if it knows the training items too well.
    validation_fraction
        Part of each class that is set aside to choose the weights, by precision at 1.
    tune
        Whether to try other values for ``width``, ``depth``, the penalties and the regulariser
        first, where they were left open (``depth`` if ``width`` was), each for a quarter of the
        steps, and to take the best on the items set aside. A number: at most so many trials.
    device
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...
    run_dir
        Directory for checkpoints and a log. If a run with these settings and data was broken off
        there, ``fit`` goes on with it.
    verbose
        Progress on stderr. None: if it is a terminal.
    random_state
        Seed of everything.

    Attributes
    ----------
    shape_ : CodeShape
        The shape of the table.
    classes_ : array
        The labels that were seen.
    validation_ : dict
        Figures on the items set aside: ``precision_at_1`` and ``bucket_nmi`` in percent,
        ``speedup_factor``. Empty if nothing was set aside.
    tuned_ : list of dict
        With ``tune`` a row for each trial: ``changes`` of settings, figures, and ``chosen``.
    codebook_ : int64[n_codes, sparsity]
        With ``assignment="codebook"`` the buckets of each class, in the order of ``classes_``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["ant", "bee", "cat"], 40)
    >>> X = np.repeat(np.eye(3), 40, axis=0) + 0.1 * rng.normal(size=(120, 3))
    >>> hasher = Hasher(width=4, steps=50).fit(X, y)
    >>> len(set(hasher.transform(X[::40]).ravel().tolist()))  # a bucket for each
    3
    """

    def __init__(
        self,
        *,
        width: int | None = None,
        depth: int = 2,
        sparsity: int = 1,
        loss: str = "npairs",
        backbone: str | nn.Module | None = None,
        assignment: str = "codebook",
        embedding_size: int | None = None,
        hidden_size: int | None = None,
        steps: int | None = None,
        base_steps: int | None = None,
        joint_steps: int | None = None,
        schedule: str | int = "one-cycle",
        rate: float | None = None,
        base_rate: float = 0.1,
        sibling_penalty: float | None = None,
        collision_penalty: float | None = None,
        regulariser: float | None = None,
        margin: float = 0.3,
        remap: bool = True,
        classes_per_batch: int = 64,
        items_per_class: int | None = None,
        augment: str = "crop-mirror",
        dropout: float = 0.0,
        validation_fraction: float = 0.1,
        tune: bool | int = False,
        device: str = "auto",
        run_dir: str | os.PathLike[str] | None = None,
        verbose: bool | None = None,
        random_state: int = 0,
    ) -> None:
        # As scikit-learn has it: settings are stored as they are, and checked by fit.
        for name, value in locals().copy().items():
            if name != "self":
                setattr(self, name, value)

    # -- learning ------------------------------------------------------------------------------

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, *, base: Hasher | None = None) -> Self:
        """Learn from labelled items.

        Parameters
        ----------
        X : float[n, size] or uint8[n, height, width, 3]
            Embeddings, or images if there is a backbone for them. Embeddings may come in several
            views, float[n, views, size], for instance of an image and of its mirror image:
            training takes one of them at random, everything else the first.
        y : int or str[n]
            Classes; any numbers or strings.
        base
            A fitted hasher whose base network and embedding layer are taken over, and not trained
            again: several tables then share their vectors. It must have been fitted with the same
            ``backbone``, ``embedding_size`` and kind of loss, on items of the same shape.

        Raises
        ------
        ValueError
            For input that cannot be used; nothing is changed then.
        KeyboardInterrupt
            After Ctrl-C, when the checkpoint is written (if there is a ``run_dir``).
        """
        # ---- everything is checked first
        settings = self.get_params()
        images = takes_images(settings["backbone"], X)
        items = checked_images(X) if images else checked_views(X)
        names = checked_labels(y, len(items))
        classes, labels = np.unique(names, return_inverse=True)
        labels = labels.astype(np.int64)
        seed = checked_seed(settings["random_state"])
        device = checked_device(settings["device"])
        fraction = checked_penalty("validation_fraction", settings["validation_fraction"])
        if fraction >= 1.0:
            raise ValueError(f"validation_fraction={fraction!r} must be >= 0 and < 1")
        training, validation = stratified_split(labels, fraction=fraction, random_state=seed)
        item_shape = items.shape[1:] if images else items.shape[-1:]
        make = partial(
            make_plan, n_classes=len(classes), n_items=len(training), item_shape=item_shape
        )
        plan = make(settings)
        n_trials = checked_trials(settings["tune"], len(validation))
        shared = None if base is None else base_weights(plan, *base._fitted())

        # ---- what all training here shares
        tensor = torch.from_numpy(items)
        data = TrainingData(tensor if images else tensor.to(device), labels, training, validation)
        display = Display(settings["verbose"])
        if len(validation) == 0 and fraction > 0:
            display.say("no class has 4 items or more: nothing is set aside, last weights are kept")
        work = Workshop(
            data,
            device=device,
            seed=seed,
            run_dir=None if settings["run_dir"] is None else Path(settings["run_dir"]),
            digest=data_digest(items, labels),
            display=display,
            base=shared,
        )

        # ---- training
        table = None
        if n_trials > 0:
            plan, table = work.tune(settings, plan, make, n_trials)
        model, figures = work.train(plan)

        # ---- done: only now the estimator changes
        self._become(plan, model.cpu().eval(), classes, figures, table)
        return self

    # -- use -----------------------------------------------------------------------------------

    def scores(self, X: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Slot scores, float32[n, depth, width]: the higher, the better the slot fits."""
        return self._apply("scores", X)

    def transform(self, X: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Bucket ids, int64[n, sparsity], best first."""
        return self._assigned(self.scores(X))

    def embed(self, X: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Vectors for re-ranking, float32[n, size]: for embeddings the given ones by default."""
        return self._apply("vectors", X)

    def encode(self, X: npt.ArrayLike) -> Encoded:
        """Vectors, bucket ids and slot scores of items, in one pass of the network."""
        scores = self.scores(X)
        by_path = not hasattr(self, "codebook_")
        return Encoded(self.embed(X), self._assigned(scores), scores, by_path)

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one item."""
        return tuple(self._fitted()[1].item_shape)

    def adapt(self, X: npt.ArrayLike, *, n_codes: int | None = None) -> Self:
        """A hasher for a database of classes that training never saw; no labels are needed.

        Clusters of the items take the place of classes: they get codes, and the last layer of
        the hash network is trained anew to find them. It takes seconds, and this hasher stays as
        it is. Vectors for re-ranking do not change, so an index needs new bucket ids alone.

        Parameters
        ----------
        X
            The database as :meth:`transform` takes it, or a part of it.
        n_codes
            How many codes there shall be, about the speed-up that a search will have. None: as
            many as there were classes in training.

        Returns
        -------
        Hasher
            A copy with ``assignment="codebook"``. The rows of its ``codebook_`` stand for
            clusters; ``validation_`` is empty, for nothing was labelled.
        """
        model, plan = self._fitted()
        items = self._checked_items(X)
        if n_codes is None:
            n_codes = len(self.classes_)
        n_codes = checked_count("n_codes", n_codes)
        for name, limit in (("items in X", len(items)), ("n_buckets", plan.shape.n_buckets)):
            if n_codes > limit:
                raise ValueError(f"n_codes={n_codes} must be <= {name} = {limit}")
        seed = checked_seed(self.get_params()["random_state"])
        adapted, new_plan = adapt_model(model, plan, torch.from_numpy(items), n_codes, seed=seed)
        hasher = type(self)(**{**self.get_params(), "assignment": "codebook"})
        hasher._become(new_plan, adapted.eval(), self.classes_, {}, None)
        return hasher

    def refine(self, X: npt.ArrayLike, y: npt.ArrayLike, *, n_codes: int) -> Self:
        """A hasher with smaller buckets, so that a search looks at less than a class.

        Classes are split into parts, and a level more tells the parts of a class apart. It takes
        seconds, and this hasher stays as it is; which class an item is taken for hardly changes,
        and its vectors not at all.

        Parameters
        ----------
        X, y
            Labelled items, for instance those of the training; each class of the training must
            occur, and no other.
        n_codes
            How many codes there shall be, about the speed-up that a search will have: at least
            one for each class, and at most ``width`` (with triplet one less) or as many as the
            class has items.

        Returns
        -------
        Hasher
            A copy with ``depth + 1`` levels. The rows of its ``codebook_`` stand for the parts.
        """
        model, plan = self._fitted()
        if not plan.n_codes or plan.shape.sparsity > 1:
            raise ValueError("refine needs assignment='codebook' and sparsity=1")
        items = self._checked_items(X)
        found, classes = np.unique(checked_labels(y, len(items)), return_inverse=True)
        if plan.codes_of != "classes":
            raise ValueError("this hasher was adapted or refined already: refine the first one")
        if not np.array_equal(found, self.classes_):
            raise ValueError(f"y has {len(found)} classes, must be those of classes_, all of them")
        n_codes = checked_count("n_codes", n_codes)
        labels = classes.astype(np.int64)
        most = most_codes(plan, labels)
        if not len(found) <= n_codes <= most:
            raise ValueError(
                f"n_codes={n_codes} must be >= {len(found)}, the number of classes, and <= {most}: "
                f"no class has more parts than items, or than slots of a level"
            )
        seed = checked_seed(self.get_params()["random_state"])
        tensor = torch.from_numpy(items)
        refined, new_plan = refine_model(model, plan, tensor, labels, n_codes, seed=seed)
        hasher = type(self)(**{**self.get_params(), "depth": new_plan.shape.depth})
        hasher._become(new_plan, refined.eval(), self.classes_, {}, None)
        return hasher

    # -- files ---------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a directory: ``config.json`` and ``model.safetensors``.

        The directory appears whole or not at all; a model that stands there is replaced.
        """
        model, plan = self._fitted()
        tuned = getattr(self, "tuned_", None)
        save_hasher(
            Path(path), self.get_params(), plan, model, self.classes_, self.validation_, tuned
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, backbone: nn.Module | None = None) -> Self:
        """Read a model that :meth:`save` wrote.

        Parameters
        ----------
        path
            The directory.
        backbone
            If the model was trained with a ``torch.nn.Module`` of your own, such a module: code
            is not stored, and its weights are replaced by the stored ones.
        """
        stored = load_hasher(Path(path), backbone)
        hasher = cls(**stored.settings)
        hasher._become(stored.plan, stored.model, stored.classes, stored.validation, stored.tuned)
        return hasher

    # -- helpers -------------------------------------------------------------------------------

    def _become(
        self,
        plan: Plan,
        model: HashModel,
        classes: npt.NDArray[Any],
        validation: dict[str, float],
        tuned: list[dict[str, Any]] | None,
    ) -> None:
        """Take over what was learned or read."""
        self._plan, self._model = plan, model
        self.shape_, self.classes_, self.validation_ = plan.shape, classes, validation
        for name in ("codebook_", "tuned_"):  # of an earlier fit
            vars(self).pop(name, None)
        if plan.n_codes:
            self.codebook_ = model.codebook.numpy().copy()
        if tuned is not None:
            self.tuned_ = tuned

    def _fitted(self) -> tuple[HashModel, Plan]:
        if not hasattr(self, "_model"):
            raise NotFittedError("this Hasher has learned nothing yet: call fit or Hasher.load")
        return self._model, self._plan

    def _apply(self, what: str, X: npt.ArrayLike) -> npt.NDArray[np.float32]:
        model, _ = self._fitted()
        return in_chunks(model, what, torch.from_numpy(self._checked_items(X)))

    def _assigned(self, scores: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Bucket ids of items with these slot scores."""
        if self._plan.n_codes:
            return assign_to_book(scores, self.codebook_, self.shape_)
        return self.shape_.scores_to_bucket_ids(scores)

    def _checked_items(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Items of the shape that was learned from."""
        _, plan = self._fitted()
        if len(plan.item_shape) == 1:
            return checked_embeddings(X, plan.item_shape[0])
        return checked_images(X, plan.item_shape)


def base_features(hasher: Hasher, X: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """What the base network of a fitted hasher gives to its embedding layer, float32[n, units]."""
    return hasher._apply("features", X)
