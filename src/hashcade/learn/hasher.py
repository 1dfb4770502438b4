"""The estimator: from labelled items to buckets and vectors."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from hashcade._extras import require_extra
from hashcade._progress import Progress, progress_bar
from hashcade._validate import as_array, checked_count, checked_number, checked_seed
from hashcade._version import __version__
from hashcade.codes import CodeShape
from hashcade.errors import ConfigError, NotFittedError, add_hint
from hashcade.index import NEVER, Cancel, Encoded, HashIndex
from hashcade.learn import files, inputs
from hashcade.learn.config import ResolvedConfig, resolve
from hashcade.learn.encoder import DenseNetwork, Encoder, OnProgress

if TYPE_CHECKING:
    from torch import nn

    from hashcade.data import ImageFeatures
    from hashcade.learn.model import HashModel

Metrics = dict[str, float]
Weights = dict[str, npt.NDArray[Any]]

_MOST_VALIDATED = 1024  # items, with prototypes: more would not choose other weights


@dataclass(kw_only=True, repr=False, eq=False)
class Hasher:
    """Learns which bucket an item belongs to.

    Given embeddings, it learns a hash head on top of them, in seconds to minutes on a CPU. Given
    images and a backbone, it first trains the network, then fine-tunes a copy with a hash head.

    Parameters
    ----------
    width, depth, sparsity
        Slots per level (None: from the number of classes) and levels: ``width ** depth`` buckets,
        in ``sparsity`` of which an item lies; they differ in the last level.
    loss, margin, remap
        ``"npairs"`` or ``"triplet"``, the margin of the latter, and whether classes with equal
        codes at a level count as one class there, as in the paper.
    backbone
        None for embeddings as they are; ``"mlp"`` trains a network of one hidden layer on them.
        For images ``"fast"`` or ``"stride"`` (made for CPUs: the first learns more, the second
        is quicker) or ``"nin"`` (the paper's). Or a
        ``torch.nn.Module`` from float[n, 3, height, width] or float[n, size] to features.
    features
        Learn from images by features of a pre-trained network, which stays as it is:
        ``"efficientnet-lite0"``, the path of an ONNX file, a ``torch.nn.Module``, or an
        :class:`ImageFeatures` with settings. Wherever items are taken, these are then images
        uint8[n, height, width, 3] of any size, paths of image files, or such features themselves.
    assignment
        ``"prototype"``: the groups of class codes that lie near propose, and the nearest class
        prototype among them decides. ``"codebook"``: an item goes to the class code with the
        largest sum of slot scores. ``"path"``: to its best slot at each level, as in the paper.
    rerank
        ``"given"``: candidates are ranked by the given embeddings, or by those of the base network.
        ``"learned"``, with prototypes: by the points that the network learns for them. None:
        learned, but with a backbone given.
    embedding_size, hidden_size
        Size of learned vectors (None: with prototypes 128; for a base network 64 or, with triplet,
        256; else the given embeddings are used), and of the hidden layer of the hash head, with
        ``"mlp"`` of the network, on which the head is linear (None: with prototypes 1024, beyond
        4096 classes and else 512, with other backbones 0).
    steps, base_steps, joint_steps, warmup_steps
        Batches of the stage that trains prototypes or slot scores, of the base stage, and of the
        one for the codes of all classes, with 0 of which these are only solved. None: from the
        size of the data. And of a stage before all, with 256 items each, that trains the backbone
        as a classifier; the base stage then has ``base_learning_rate`` for it.
    budget
        Seconds that training may take: by the measured speed there are as many batches as can be
        done in this time, if it is less than what they would take otherwise.
    learning_rate, base_learning_rate, schedule
        Peak rate of the new layers (None: 3e-3, for images 1e-3), and the factor on it for the
        network below them in the hash stage; 0 freezes it. ``"one-cycle"`` for short runs,
        ``"paper"``, ``"constant"``, or a number: the rate falls to 0.3 after every so many steps.
    sibling_penalty, collision_penalty, regularization
        Of the code problem, and of the npairs loss in the hash stage. None: by loss and sparsity.
    classes_per_batch, items_per_class
        A batch. ``items_per_class`` must be even for npairs; None: for a batch of 128.
    augment, dropout, mixup
        Random changes: of images ``"crop-mirror"``, ``"crop"`` (such as for letters) or
        ``"none"``; the share of an embedding's values hidden from the hash network at a step; and,
        where prototypes are learned, how much embeddings of a batch are mixed (None: 0.2 beyond
        512 classes, else 0).
    validation_fraction, sample, tune
        Share of each class in the validation set, which picks the weights, by precision at 1; the
        number of items to learn from (None: all), with as many of each class, if it has them; and
        whether to try values for ``width`` and ``depth``, penalties and regularization on the
        validation set first, where they were left open. A number: at most so many trials.
    device, run_dir, verbose, random_state
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...; a directory for checkpoints and a log, where an
        interrupted run is resumed; progress on stderr (None: on a terminal); the seed.

    Attributes
    ----------
    shape_, classes_, config_
        The shape of the table, the sorted labels, and all settings with nothing left open.
    validation_, tuned_
        ``precision_at_1`` and ``bucket_nmi`` in percent, and ``speedup_factor``, if there is a
        validation set; with ``tune`` a row of ``changes``, metrics and ``chosen`` for each trial.
    codebook_ : int64[n_codes, sparsity]
        Unless by path the buckets of each class in ``classes_``, or of each cluster or part.
    prototypes_ : float32[n_codes, size]
        With prototypes that of each of them.

    Examples
    --------
    >>> import numpy as np
    >>> noise = np.random.default_rng(0).normal(size=(120, 3))
    >>> X, y = np.repeat(np.eye(3), 40, axis=0) + 0.1 * noise, np.repeat(["ant", "bee", "cat"], 40)
    >>> hasher = Hasher(width=4, steps=50).fit(X, y)
    >>> len(set(hasher.transform(X[::40]).ravel().tolist()))  # a bucket for each
    3
    """

    # As scikit-learn has it: settings are stored as they are, and checked by fit.
    width: int | None = None
    depth: int = 2
    sparsity: int = 1
    loss: str = "npairs"
    backbone: str | nn.Module | None = None
    features: str | os.PathLike[str] | nn.Module | ImageFeatures | None = None
    assignment: str = "prototype"
    rerank: str | None = None
    embedding_size: int | None = None
    hidden_size: int | None = None
    steps: int | None = None
    base_steps: int | None = None
    joint_steps: int | None = None
    warmup_steps: int = 0
    budget: float | None = None
    schedule: str | int = "one-cycle"
    learning_rate: float | None = None
    base_learning_rate: float = 0.1
    sibling_penalty: float | None = None
    collision_penalty: float | None = None
    regularization: float | None = None
    margin: float = 0.3
    remap: bool = True
    classes_per_batch: int = 64
    items_per_class: int | None = None
    augment: str = "crop-mirror"
    dropout: float = 0.0
    mixup: float | None = None
    validation_fraction: float = 0.1
    sample: int | None = None
    tune: bool | int = False
    device: str = "auto"
    run_dir: str | os.PathLike[str] | None = None
    verbose: bool | None = None
    random_state: int = 0

    config_: ResolvedConfig = field(init=False)
    shape_: CodeShape = field(init=False)
    classes_: npt.NDArray[Any] = field(init=False)
    validation_: Metrics = field(init=False)
    tuned_: list[dict[str, Any]] = field(init=False)
    codebook_: npt.NDArray[np.int64] = field(init=False)
    prototypes_: npt.NDArray[np.float32] = field(init=False)
    _weights: Weights = field(init=False)
    _encoder: Encoder = field(init=False)
    _torch_model: HashModel | None = field(init=False)  # made when it is needed
    _row_of_class: dict[Any, int] = field(init=False)  # rows of the code book
    _features: ImageFeatures | None = field(init=False, default=None)  # of what was fitted

    # -- learning ------------------------------------------------------------------------------

    def fit(
        self, X: npt.ArrayLike, y: npt.ArrayLike, *, base: Hasher | None = None,
        start: Hasher | None = None,
    ) -> Self:  # fmt: skip
        """Learn from labelled items; if anything is wrong with them, nothing is changed.

        ``X`` are embeddings float[n, size], or float[n, views, size], of which training takes a
        view at random and everything else the first; with a backbone for them, images
        uint8[n, height, width, 3]. ``y`` are classes, int or str[n]. A ``np.memmap`` of any real
        dtype stays in its file, and is read batch by batch. ``base`` is a fitted hasher
        whose base network is taken over, and not trained again: tables then share their vectors.
        It must have the same ``backbone``, ``embedding_size`` and loss, and items of that shape.
        ``start`` is one whose network training starts from, in place of a warm-up; it must have
        the same ``backbone``.
        """
        torch: Any = require_extra("torch", "train")
        from hashcade.learn import training_data
        from hashcade.learn.distributed import Ranks
        from hashcade.learn.trainer import Trainer
        from hashcade.learn.tune import tune

        features = self._checked_features()
        record = None if features is None else features.record
        X = self._extracted(features, X)
        images = training_data.takes_images(self.backbone, X)
        seed, device = checked_seed(self.random_state), training_data.checked_device(self.device)
        items, labels = training_data.checked_items(X, y, images, self.sample, seed)
        fraction = checked_number("validation_fraction", self.validation_fraction)
        classes, numbers = np.unique(labels, return_inverse=True)
        mapped = isinstance(items, np.memmap)
        most = training_data.MOST_IN_MEMORY if mapped else None
        rows = training_data.stratified_split(
            numbers, fraction=fraction, random_state=seed,
            most=_MOST_VALIDATED if self.assignment == "prototype" else most,
        )  # fmt: skip
        data = training_data.TrainingData(
            items if mapped else torch.from_numpy(items), numbers, *rows
        )
        item_shape = items.shape[1:] if images else items.shape[-1:]
        settings, sizes = self.get_params(), (len(classes), len(data.training), item_shape)
        config = replace(resolve(settings, *sizes), features=record)
        if base is not None:
            config.check_base(base._fitted().config_)
        if start is not None:
            config.check_start(start._fitted().config_, base)

        budget = None if self.budget is None else checked_number("budget", self.budget)
        if budget is not None and self.tune is not False:
            raise ValueError(f"budget={budget:g} and tune={self.tune!r} exclude each other")
        ranks = Ranks.join(device)
        first = ranks.rank == 0  # it alone writes, and says something
        progress = Progress(self.verbose if first else False)
        if len(data.validation) == 0 and fraction > 0:
            progress.say("no class has 4 items or more: no validation set, the last weights count")
        if isinstance(data.items, torch.Tensor) and not images:
            data = replace(data, items=data.items.to(device))
        run_dir = Path(self.run_dir) if self.run_dir is not None and first else None
        weights = None if base is None else base._model().base_weights()
        if start is not None:
            weights = start._model().network_weights()
        trials = None
        with ranks.together():
            trainer = Trainer(data, device, seed, run_dir, progress, weights, ranks)
            trainer.check_ranks(config)
            if self.tune is not False:
                config, trials = tune(trainer, config, settings, sizes)
                config = replace(config, features=record)
            if budget is not None:
                config = trainer.within(config, budget)
            model, metrics = trainer.train(config)
        self._features = features
        return self._set_model(config, model, classes, metrics, trials)

    def with_features(self, X: Any) -> Any:
        """Images as features, if the hasher has a pre-trained network for them; else ``X``.

        Nothing else takes as long: who needs the features of images twice calls this first.
        """
        return self._extracted(self._features or self._checked_features(), X)

    def _extracted(self, features: ImageFeatures | None, X: Any) -> Any:
        if features is None:
            return X
        from hashcade.data import are_images

        if hasattr(X, "detach"):  # a tensor
            X = as_array("X", X)
        if not are_images(X):
            size, n = features.record.size, np.shape(X)[-1] if np.ndim(X) else 0
            if n != size:
                must = f"must be images, or features of {features.name} of {size} numbers"
                raise ValueError(f"X has shape {np.shape(X)}, {must}")
            return X
        single = isinstance(X, str | os.PathLike) or len(X) == 1  # a query: no bar for it
        with progress_bar("features of images", quiet=single or self.verbose is False) as progress:
            return features.of(X, progress=progress)

    def _checked_features(self) -> ImageFeatures | None:
        if self.features is None:
            return None
        from hashcade.data import as_features

        features = as_features(self.features)
        if features is not None and self.backbone not in (None, "mlp"):
            raise ValueError(f"features and backbone={self.backbone!r} exclude each other")
        return features

    def fit_clusters(self, X: npt.ArrayLike, *, n_codes: int | None = None) -> Self:
        """Learn from embeddings without labels: clusters take the place of classes.

        Nothing is trained: prototypes are the centroids of ``n_codes`` clusters (None: four times
        the root of the number of items, if there are as many buckets), as in an inverted file, and
        items lie near theirs.
        """
        torch: Any = require_extra("torch", "train")
        from hashcade.learn.recoding import cluster_model

        features = self._checked_features()
        record = None if features is None else features.record
        items = inputs.checked_embeddings(self._extracted(features, X))
        seed = checked_seed(self.random_state)
        limits = {"items in X": len(items)}
        if self.width is not None:
            limits["n_buckets"] = CodeShape(width=self.width, depth=self.depth).n_buckets
        usual = min(round(4 * len(items) ** 0.5), *limits.values())
        n_codes = checked_count("n_codes", usual if n_codes is None else n_codes)
        for name, limit in limits.items():
            if n_codes > limit:
                raise ValueError(f"n_codes={n_codes} must be <= {name} = {limit}")
        settings = {**self.get_params(), "backbone": None, "embedding_size": None}
        settings |= {"assignment": "prototype", "rerank": "given", "hidden_size": 0}
        config = resolve(settings, n_codes, len(items), items.shape[1:])
        config = replace(config, point_size=0, features=record)
        model, config = cluster_model(config, torch.from_numpy(items), n_codes, seed=seed)
        self._features = features
        return self._set_model(config, model, np.arange(config.n_codes), {})

    def adapt(self, X: npt.ArrayLike, *, n_codes: int | None = None) -> Self:
        """A copy for a database of classes that training never saw; no labels are needed.

        Clusters of ``X``, the database or a part of it, take the place of classes. With prototypes
        on given embeddings these are their centroids, and candidates are ranked by what is given.
        Else the last layer is trained for them in seconds; vectors stay the same, and an index
        needs new bucket ids alone.
        ``n_codes`` is about the speed-up of a search (None: the number of classes).
        """
        torch: Any = require_extra("torch", "train")
        from hashcade.learn.recoding import adapt_model, cluster_model

        items, seed = torch.from_numpy(self._items(X)), checked_seed(self.random_state)
        n_codes = checked_count("n_codes", len(self.classes_) if n_codes is None else n_codes)
        for name, limit in (("items in X", len(items)), ("n_buckets", self.shape_.n_buckets)):
            if n_codes > limit:
                raise ValueError(f"n_codes={n_codes} must be <= {name} = {limit}")
        config = self.config_
        if config.uses_prototypes and config.backbone is None:
            changes: dict[str, Any] = {"point_size": 0, "hidden_size": 0, "embedding_size": None}
            config = replace(config, rerank="given", **changes)
            model, config = cluster_model(config, items, n_codes, seed=seed)
        else:
            model, config = adapt_model(self._model(), config, items, n_codes, seed=seed)
        hasher = self._copy(assignment=config.assignment)
        return hasher._set_model(config, model, self.classes_, {})

    def extend(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """A copy that knows further classes, from a few items of each, in seconds.

        On embeddings the last layer learns them, without torch: what it learned before stays as it
        is but for little, so the learned vectors of a table remain valid. Else their prototypes
        are the means of their points. They get the codes that fit best while all others stay as
        they are. Labels must be new ones, of the kind that was learned.
        """
        from hashcade.learn.extension import extended_weights

        config = self._fitted().config_
        if not config.uses_prototypes or config.codes_of != "classes":
            raise ValueError("extend needs a hasher fitted with assignment='prototype' and labels")
        items = self._items(X)
        labels = inputs.checked_classes(y, len(items), n_classes=1)
        names, numbers = np.unique(labels, return_inverse=True)
        if known := [name for name in names.tolist() if name in self._row_of_class]:
            more = f" and {len(known) - 1} more" * (len(known) > 1)
            raise ValueError(f"y has {known[0]!r}{more}, learned before: labels must be new")
        if (names.dtype.kind == "U") != (self.classes_.dtype.kind == "U"):
            raise ValueError("y mixes integers and strings with those of classes_")
        n_codes = config.n_codes + len(names)
        if n_codes > config.shape.n_buckets:
            limit = f"n_buckets = {config.shape.n_buckets}"
            error = ValueError(f"there would be {n_codes} classes, must be <= {limit}")
            raise add_hint(error, "fit again with a larger width or depth")
        outputs, seed = self.encoder.outputs(items), checked_seed(self.random_state)
        weights = extended_weights(self._weights, config, items, outputs, numbers, seed)
        classes = np.concatenate([self.classes_, names])
        order = np.argsort(classes, kind="stable")
        for name in ("codebook", "prototypes", "class_means"):
            if name in weights:
                weights[name] = weights[name][order]
        hasher = self._copy()
        return hasher._set_fitted(replace(config, n_codes=n_codes), weights, classes[order], {})

    def refine(self, X: npt.ArrayLike, y: npt.ArrayLike, *, n_codes: int) -> Self:
        """A copy with smaller buckets, so that a search looks at less than a class.

        One more level, trained in seconds, tells parts of a class apart; vectors stay the same.
        ``X`` and ``y`` are labelled items of all classes of the training, and no other. ``n_codes``
        is about the speed-up of a search: for each class at least one, and at most ``width`` (with
        triplet one less) or as many as it has items.
        """
        torch: Any = require_extra("torch", "train")
        from hashcade.learn.recoding import refine_model, refine_prototypes

        config = self._fitted().config_
        if not config.uses_codebook or config.shape.sparsity > 1:
            raise ValueError("refine needs sparsity=1, and another assignment than 'path'")
        items = torch.from_numpy(self._items(X))
        names, labels = np.unique(inputs.checked_classes(y, len(items)), return_inverse=True)
        if config.codes_of != "classes":
            raise ValueError("this hasher was adapted or refined already: refine the first one")
        if not np.array_equal(names, self.classes_):
            raise ValueError(f"y has {len(names)} classes, must be those of classes_, all of them")
        seed, n_codes = checked_seed(self.random_state), checked_count("n_codes", n_codes)
        refine = refine_prototypes if config.uses_prototypes else refine_model
        model, config = refine(self._model(), config, items, labels, n_codes, seed=seed)
        hasher = self._copy(depth=config.shape.depth)
        return hasher._set_model(config, model, self.classes_, {})

    # -- use -----------------------------------------------------------------------------------

    def encode(
        self, X: npt.ArrayLike, *, n_probe: int = 1, scores: bool = True,
        progress: OnProgress = None, cancel: Cancel | None = None,
    ) -> Encoded:  # fmt: skip
        """Vectors, bucket ids and slot scores, in one pass; ``progress`` gets (done, total).

        With prototypes ``n_probe`` codes, and some more to continue with, are ranked, and a search
        needs no scores: without ``scores`` these take no time, and are None. ``cancel`` stops it
        when it is set, by another thread; then ``Cancelled`` is raised.
        """
        encoder, items = self.encoder, self._extracted(self._features, X)
        return encoder.encode(items, n_probe, progress, scores=scores, cancel=cancel or NEVER)

    def transform(self, X: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Bucket ids, int64[n, sparsity], best first."""
        return self.encoder.bucket_ids(self.encoder.outputs(self._items(X), scores=False))

    def place(self, encoded: Encoded, labels: npt.NDArray[np.object_]) -> Encoded:
        """Items in the buckets of their labels, object[n]; others stay where the network puts them.

        Labels that were not learned, or None, say nothing; nor does any label if there are no
        codes of classes.
        """
        codes = self._codes_of(labels)
        if codes is None:
            return encoded
        of_class = self.encoder.of_class(encoded.vectors, codes)
        buckets = np.where(codes[:, None] < 0, encoded.bucket_ids, of_class)
        return replace(encoded, bucket_ids=buckets)

    def place_items(
        self, X: npt.ArrayLike, labels: npt.NDArray[np.object_] | None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Vectors and buckets of items to fill a table with: what :meth:`place` makes of them."""
        codes = None if labels is None else self._codes_of(labels)
        return self.encoder.place(self._items(X), codes)

    def _codes_of(self, labels: npt.NDArray[np.object_]) -> npt.NDArray[np.int64] | None:
        """Rows of the code book, -1 for labels that have none; None if no label can have one."""
        config = self._fitted().config_
        parts = config.codes_of == "parts" and config.rerank == "learned"
        if not (config.uses_codebook and (config.codes_of == "classes" or parts)):
            return None
        rows = (self._row_of_class.get(label, -1) for label in labels.tolist())
        return np.fromiter(rows, np.int64, len(labels))

    def rank(self, vectors: npt.NDArray[np.float32], n_probe: int = 1) -> npt.NDArray[Any] | None:
        """Buckets of vectors that are points of prototypes themselves, best first; else None."""
        return self.encoder.rank(vectors, n_probe)

    def embed(self, X: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Vectors for re-ranking, float32[n, size]."""
        return self.encoder.outputs(self._items(X), scores=False).vectors

    def scores(self, X: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Slot scores, float32[n, depth, width]: the higher, the better the slot fits."""
        scores = self.encoder.outputs(self._items(X)).scores
        assert scores is not None
        return scores

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike) -> float:
        """Share of items whose nearest other item in their buckets is of their class, 0 to 1.

        An item that is alone counts as wrong, so both mixed and scattered classes score low.
        """
        from hashcade.evaluate import precision_at

        encoded = self.encode(X)
        labels = inputs.checked_classes(y, len(encoded), n_classes=1)
        vectors, buckets = encoded.vectors, encoded.bucket_ids
        result = HashIndex.build(buckets, vectors, shape=self.shape_).search(
            vectors, bucket_ids=buckets, n_neighbors=1, fill="none", exclude_self=True
        )
        return precision_at(result.ids, labels, labels) / 100

    # -- files ---------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a directory, which appears whole or not at all, or replaces one."""
        from hashcade.data import ONNX_FILE

        config = {
            "hashcade_version": __version__,
            "settings": {**self.get_params(), "backbone": None, "features": None, "run_dir": None},
            "resolved": self._fitted().config_.to_json(),
            "classes": self.classes_.tolist(),
            "validation": self.validation_,
            "tuned": getattr(self, "tuned_", None),
        }
        onnx = None if self._features is None else self._features.onnx_content()
        more = {} if onnx is None else {ONNX_FILE: onnx}
        files.write_tensors(Path(path), config, self._weights, more=more)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        backbone: nn.Module | None = None,
        features: nn.Module | None = None,
    ) -> Self:
        """Read a stored model; a ``torch.nn.Module`` of your own is not stored, and must be given.

        If images need a package that is not installed, a warning says so; features will do.
        """
        stored, weights = files.read_tensors(Path(path))
        try:
            config = ResolvedConfig.from_json(stored["resolved"], backbone)
            own = {"backbone": config.backbone, "features": None, "run_dir": None}
            hasher = cls(**{**stored["settings"], **own})
            if config.features is not None:
                from hashcade.data import ImageFeatures

                hasher._features = ImageFeatures.stored(config.features, Path(path), features)
                hasher.features = hasher._features
                if hasher._features.missing:
                    warnings.warn(f"{path} takes {hasher._features.missing}", stacklevel=2)
            elif features is not None:
                raise ConfigError("the model was not trained on features of another network")
            classes, metrics = _checked_classes(stored["classes"]), dict(stored["validation"])
            has_codes = config.uses_codebook and config.codes_of == "classes"
            if has_codes and len(classes) != config.n_codes:
                raise ValueError(f"{len(classes)} classes have {config.n_codes} codes")
            return hasher._set_fitted(config, weights, classes, metrics, stored["tuned"])
        except (
            ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError,
            RuntimeError,
        ) as error:  # fmt: skip
            reason = " ".join(str(error).split())[:200]
            raise files.damaged(Path(path), f"its parts do not fit: {reason}") from None

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the hasher as an ONNX file, to be run without Python or torch (extra ``onnx``).

        From ``items``, float32 or uint8, to ``bucket_ids``, ``scores`` and ``vectors`` as of
        :meth:`encode`; but runtimes round differently: an item between two codes may get either.
        """
        from hashcade.learn.onnx import export_onnx

        export_onnx(Path(path), self._fitted()._model(), self.config_)

    # -- what scikit-learn's tools expect --------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All settings by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    def set_params(self, **params: Any) -> Self:
        """Change settings by name. What was learned stays until the next ``fit``."""
        allowed = self.get_params()
        for name in params.keys() - allowed.keys():
            raise ValueError(f"{name!r} is not a setting, must be one of {sorted(allowed)}")
        vars(self).update(params)
        return self

    def fit_transform(self, X: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Learn from labelled items, and return their buckets."""
        return self.fit(X, y).transform(X)

    def __repr__(self) -> str:
        params, usual = self.get_params(), type(self)().get_params()
        changed = [f"{k}={v!r}" for k, v in params.items() if v is not usual[k] and v != usual[k]]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "shape_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags, TransformerTags

        return Tags(None, TargetTags(required=True), TransformerTags(preserves_dtype=[]))

    @property
    def encoder(self) -> Encoder:
        """The fitted model at work, without what learning needs."""
        return self._fitted()._encoder

    @property
    def item_shape(self) -> tuple[int, ...]:
        """``(size,)`` for embeddings, ``(height, width, 3)`` for images, once fitted."""
        return self._fitted().config_.item_shape

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the images that it takes; None if it takes none."""
        return self._fitted().config_.image_size

    @property
    def image_features(self) -> ImageFeatures | None:
        """The pre-trained network that images go through first, if there is one."""
        return self._fitted()._features

    @property
    def n_features_in_(self) -> int:
        """Numbers per item, once fitted."""
        return int(np.prod(self.config_.item_shape))  # AttributeError before fit, as it should be

    def _copy(self, **changes: Any) -> Self:
        """One with the same settings and pre-trained network, to be fitted."""
        hasher = type(self)(**{**self.get_params(), **changes})
        hasher._features = self._features
        return hasher

    def _set_model(
        self, config: ResolvedConfig, model: HashModel, classes: npt.NDArray[Any],
        metrics: Metrics, tuned: list[dict[str, Any]] | None = None,
    ) -> Self:  # fmt: skip
        from hashcade.learn.model import weights_of

        return self._set_fitted(config, weights_of(model), classes, metrics, tuned)

    def _set_fitted(
        self, config: ResolvedConfig, weights: Weights, classes: npt.NDArray[Any],
        metrics: Metrics, tuned: list[dict[str, Any]] | None = None,
    ) -> Self:  # fmt: skip
        self._encoder, self._torch_model = _encoder_and_model(config, weights)
        self.config_, self._weights = config, weights
        self.shape_, self.classes_, self.validation_ = config.shape, classes, metrics
        for name in ("codebook_", "prototypes_", "tuned_"):  # of an earlier fit
            vars(self).pop(name, None)
        self._row_of_class = {label: row for row, label in enumerate(classes.tolist())}
        if config.uses_codebook:
            self.codebook_ = weights["codebook"].copy()
        if config.uses_prototypes:
            self.prototypes_ = weights["prototypes"].copy()
        if tuned is not None:
            self.tuned_ = tuned
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which make the encoder again from the weights."""
        return {k: v for k, v in vars(self).items() if k not in ("_encoder", "_torch_model")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "_weights" in state:
            self._encoder, self._torch_model = _encoder_and_model(self.config_, self._weights)

    def _model(self) -> HashModel:
        """The model in torch."""
        if self._torch_model is None:
            from hashcade.learn.model import make_model

            self._torch_model = make_model(self.config_, self._weights)
        return self._torch_model

    def _fitted(self) -> Self:
        if not hasattr(self, "_encoder"):
            hint = "call fit or Hasher.load first"
            raise NotFittedError("this Hasher is not fitted yet", hint=hint)
        return self

    def _items(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Items of the shape that was learned from."""
        return self.encoder.checked(self._extracted(self._features, X))


def _checked_classes(stored: Any) -> npt.NDArray[Any]:
    """Labels of a stored model: integers or strings, none twice."""
    kinds = {type(label) for label in stored}
    if not isinstance(stored, list) or len(kinds) > 1 or not kinds <= {int, str}:
        raise ValueError("classes must be integers or strings")
    if len(set(stored)) < len(stored):
        raise ValueError("a class is there twice")
    return np.asarray(stored)


def _encoder_and_model(
    config: ResolvedConfig, weights: Weights
) -> tuple[Encoder, HashModel | None]:
    """The encoder, and the torch model if it needs one."""
    if config.is_dense:
        return Encoder(config, weights, DenseNetwork(config, weights)), None
    require_extra("torch", "train")
    from hashcade.learn.model import make_encoder, make_model

    model = make_model(config, weights)
    return make_encoder(config, weights, model), model


def base_features(hasher: Hasher, X: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Features of the base network of a fitted hasher, float32[n, units]."""
    torch: Any = require_extra("torch", "train")
    from hashcade.learn.model import for_all

    model = hasher._fitted()._model()
    return for_all(model, model.features, torch.from_numpy(hasher._items(X)))


def base_vectors(hasher: Hasher, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Vectors for re-ranking of items whose :func:`base_features` are known, float32[n, size]."""
    torch: Any = require_extra("torch", "train")
    from hashcade.learn.model import for_all

    model = hasher._fitted()._model()
    return for_all(model, model.vectors_of_features, torch.from_numpy(features))
