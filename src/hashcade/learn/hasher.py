"""The estimator: learns buckets and vectors from labelled items."""

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

_MAX_VALIDATION = 1024  # items, with prototypes: more would not change the chosen weights


@dataclass(kw_only=True, repr=False, eq=False)
class Hasher:
    """Learns which bucket an item belongs to.

    Given embeddings, it learns a hash head on top of them, in seconds to minutes on a CPU. Given
    images and a backbone, it first trains the network, then fine-tunes a copy with a hash head.

    Parameters
    ----------
    width, depth, sparsity
        Slots per level (None: from the number of classes) and levels: ``width ** depth`` buckets.
        An item is in ``sparsity`` of them, which differ in the last level.
    loss, margin, remap
        ``"npairs"`` or ``"triplet"``, the margin of the latter, and whether classes with equal
        codes at a level count as one class there, as in the paper.
    backbone
        None: use embeddings directly; ``"mlp"`` trains a network of one hidden layer on them. For
        images ``"fast"`` or ``"stride"`` (for CPUs: the first is more precise, the second faster)
        or ``"nin"`` (the paper's). Or a ``torch.nn.Module`` from float[n, 3, height, width] or
        float[n, size] to features.
    features
        Train on features of images from a frozen pre-trained network: ``"efficientnet-lite0"``, the
        path of an ONNX file, a ``torch.nn.Module``, or an :class:`ImageFeatures` with settings. All
        methods then take images uint8[n, height, width, 3] of any size, paths of image files, or
        such features.
    assignment
        ``"prototype"``: an item is assigned to the code of the nearest class prototype, among a
        shortlist of nearby groups of codes. ``"codebook"``: to the class code with the largest sum
        of slot scores. ``"path"``: to its best slot at each level, as in the paper.
    rerank
        ``"given"``: candidates are ranked by the given embeddings, or by those of the base network.
        ``"learned"``, with prototypes: by the learned points that are compared with them. None:
        ``"learned"`` with prototypes and without a backbone, else ``"given"``.
    embedding_size, hidden_size
        Size of learned vectors (None: 128 with prototypes; 64 for a base network, 256 with triplet;
        else the given embeddings are used), and of the hidden layer of the hash head, or with
        ``"mlp"`` of the network, followed by a linear head (None: 1024 with prototypes and up to
        4096 classes, else 512; 0 with other backbones).
    steps, base_steps, joint_steps, warmup_steps
        Steps of the stage that trains prototypes or slot scores, of the base stage, and of the
        stage for the codes of all classes, which with 0 steps are only solved. None: from the size
        of the data. And of a first stage, with batches of 256 items, that trains the backbone as a
        classifier; the base stage then uses ``base_learning_rate`` for it.
    budget
        Seconds that training may take: by the measured speed the number of steps is reduced to fit.
    learning_rate, base_learning_rate, schedule
        Peak rate of the new layers (None: 3e-3, for images 1e-3), and the factor on it for the
        backbone in the hash stage; 0 freezes it. ``"one-cycle"`` for short runs, ``"paper"``,
        ``"constant"``, or a number of steps, after each of which the rate is multiplied by 0.3.
    sibling_penalty, collision_penalty, regularization
        Of the code problem, and of the npairs loss in the hash stage. None: by loss and sparsity.
    classes_per_batch, items_per_class
        Size of a batch. ``items_per_class`` must be even for npairs; None: for a batch of 128.
    class_weight
        None: the network learns how frequent classes are, so items of rare ones may go to frequent
        ones. ``"balanced"``, with prototypes: all classes count the same.
    augment, dropout, mixup
        Augmentation of images: ``"crop-mirror"``, ``"crop"`` (such as for letters) or ``"none"``;
        dropout on the embeddings in the hash network; and mixup of embeddings in the training of
        prototypes (None: 0.2 beyond 512 classes, else 0.1).
    validation_fraction, sample, tune
        Share of each class in the validation set, on which the best weights are chosen, by
        precision at 1; the size of a balanced sample of the items for training (None: all); and
        whether to tune ``width`` and ``depth``, penalties and regularization on the validation set
        first, unless they are given. A number: the maximum of trials.
    device, run_dir, verbose, random_state
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...; a directory for checkpoints and a log, from which an
        interrupted run resumes; progress on stderr (None: on a terminal); the seed.

    Attributes
    ----------
    shape_, classes_, config_
        The shape of the table, the sorted labels, and all settings with defaults filled in.
    validation_, tuned_
        ``precision_at_1`` and ``bucket_nmi`` in percent, and ``speedup_factor``, if there is a
        validation set; with ``tune`` a row of ``changes``, metrics and ``chosen`` for each trial.
    codebook_ : int64[n_codes, sparsity]
        The buckets of each class in ``classes_``, or of each cluster or part; not with ``"path"``.
    prototypes_ : float32[n_codes, size]
        The prototype of each of these, with ``assignment="prototype"``.

    Examples
    --------
    >>> import numpy as np
    >>> noise = np.random.default_rng(0).normal(size=(120, 3))
    >>> X, y = np.repeat(np.eye(3), 40, axis=0) + 0.1 * noise, np.repeat(["ant", "bee", "cat"], 40)
    >>> hasher = Hasher(width=4, steps=50).fit(X, y)
    >>> len(set(hasher.transform(X[::40]).ravel().tolist()))  # a bucket for each
    3
    """

    # As in scikit-learn: settings are stored unchanged, and checked by fit.
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
    class_weight: str | None = None
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
    _torch_model: HashModel | None = field(init=False)  # created when it is needed
    _row_of_class: dict[Any, int] = field(init=False)  # rows of the code book
    _features: ImageFeatures | None = field(init=False, default=None)  # of the fitted model

    # -- learning ------------------------------------------------------------------------------

    def fit(
        self, X: npt.ArrayLike, y: npt.ArrayLike, *, base: Hasher | None = None,
        start: Hasher | None = None,
    ) -> Self:  # fmt: skip
        """Fit to labelled items; if they are invalid, nothing is changed.

        ``X`` are embeddings float[n, size], or float[n, views, size], of which training uses a
        random view and everything else the first; or, with a backbone for them, images
        uint8[n, height, width, 3]. ``y`` are classes, int or str[n]. A ``np.memmap`` of any real
        dtype stays in its file, and is read batch by batch. ``base`` is a fitted hasher whose base
        network is used without further training: tables then share their vectors. It must have the
        same ``backbone``, ``embedding_size``, loss and shape of items. ``start`` is a fitted hasher
        with the same ``backbone``, from whose network training starts, instead of a warm-up.
        """
        torch: Any = require_extra("torch", "train")
        from hashcade.learn import training_data
        from hashcade.learn.distributed import Ranks
        from hashcade.learn.trainer import Trainer
        from hashcade.learn.tune import tune

        features = self._checked_features()
        record = None if features is None else features.record
        X = self._to_features(features, X)
        images = training_data.takes_images(self.backbone, X)
        seed, device = checked_seed(self.random_state), training_data.checked_device(self.device)
        items, labels = training_data.checked_items(X, y, images, self.sample, seed)
        fraction = checked_number("validation_fraction", self.validation_fraction)
        classes, numbers = np.unique(labels, return_inverse=True)
        is_mapped = isinstance(items, np.memmap)
        max_items = training_data.MOST_IN_MEMORY if is_mapped else None
        rows = training_data.stratified_split(
            numbers, fraction=fraction, random_state=seed,
            max_items=_MAX_VALIDATION if self.assignment == "prototype" else max_items,
        )  # fmt: skip
        data = training_data.TrainingData(
            items if is_mapped else torch.from_numpy(items), numbers, *rows
        )
        item_shape = items.shape[1:] if images else items.shape[-1:]
        settings, sizes = self.get_params(), (len(classes), len(data.training), item_shape)
        config = replace(resolve(settings, *sizes), features=record)
        if base is not None:
            config.check_base(base._require_fitted().config_)
        if start is not None:
            config.check_start(start._require_fitted().config_, base)

        budget = None if self.budget is None else checked_number("budget", self.budget)
        if budget is not None and self.tune is not False:
            raise ValueError(f"budget={budget:g} and tune={self.tune!r} exclude each other")
        ranks = Ranks.join(device)
        is_first = ranks.rank == 0  # only this one writes files and shows progress
        progress = Progress(self.verbose if is_first else False)
        if len(data.validation) == 0 and fraction > 0:
            progress.say("no class has 4 items or more: no validation set, the last weights count")
        if isinstance(data.items, torch.Tensor) and not images:
            data = replace(data, items=data.items.to(device))
        run_dir = Path(self.run_dir) if self.run_dir is not None and is_first else None
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
        """Features of images, if the hasher has a pre-trained network for them; else ``X``.

        This is the slowest step: to use the same images more than once, call this first.
        """
        if self.features is None and self._features is None:
            return X
        return self._to_features(self._features or self._checked_features(), X)

    def _to_features(self, features: ImageFeatures | None, X: Any) -> Any:
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
        single = isinstance(X, str | os.PathLike) or len(X) == 1  # no progress bar for a query
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
        """Fit to embeddings without labels: clusters are used instead of classes.

        Nothing is trained: prototypes are the centroids of ``n_codes`` clusters (None: four times
        the square root of the number of items, limited by the number of buckets), as in an inverted
        file index.
        """
        torch: Any = require_extra("torch", "train")
        from hashcade.learn.recoding import cluster_model

        features = self._checked_features()
        record = None if features is None else features.record
        items = inputs.checked_embeddings(self._to_features(features, X))
        seed = checked_seed(self.random_state)
        limits = {"items in X": len(items)}
        if self.width is not None:
            limits["n_buckets"] = CodeShape(width=self.width, depth=self.depth).n_buckets
        default = min(round(4 * len(items) ** 0.5), *limits.values())
        n_codes = _checked_n_codes(default if n_codes is None else n_codes, limits)
        settings = {**self.get_params(), "backbone": None, "embedding_size": None}
        settings |= {"assignment": "prototype", "rerank": "given", "hidden_size": 0}
        config = resolve(settings, n_codes, len(items), items.shape[1:])
        config = replace(config, point_size=0, features=record)
        model, config = cluster_model(config, torch.from_numpy(items), n_codes, seed=seed)
        self._features = features
        return self._set_model(config, model, np.arange(config.n_codes), {})

    def adapt(self, X: npt.ArrayLike, *, n_codes: int | None = None) -> Self:
        """A copy for a database of unknown classes; no labels are needed.

        Codes are for clusters of ``X``, the database or a part of it, instead of classes. With
        prototypes and without a backbone prototypes are the centroids, and candidates are ranked by
        the given embeddings. Else the last layer is trained for them in seconds; vectors stay the
        same, and an index only needs new bucket ids. ``n_codes`` is about the speed-up of a search
        (None: the number of classes).
        """
        torch: Any = require_extra("torch", "train")
        from hashcade.learn.recoding import adapt_model, cluster_model

        items, seed = torch.from_numpy(self._items(X)), checked_seed(self.random_state)
        limits = {"items in X": len(items), "n_buckets": self.shape_.n_buckets}
        n_codes = _checked_n_codes(len(self.classes_) if n_codes is None else n_codes, limits)
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
        """A copy with new classes, from a few items of each, in seconds.

        On embeddings the last layer is trained for them, without torch; it changes little for other
        classes, so the learned vectors of a table remain valid. Else their prototypes are the means
        of their points. They get the codes that fit best, and all other codes stay the same. Labels
        must be new, and of the same type as those learned before.
        """
        from hashcade.learn.extension import extended_weights

        config = self._require_fitted().config_
        if not config.uses_prototypes or config.codes_of != "classes":
            raise ValueError("extend needs a hasher fitted with assignment='prototype' and labels")
        items = self._items(X)
        labels = inputs.checked_classes(y, len(items), n_classes=1)
        names, numbers = np.unique(labels, return_inverse=True)
        if existing := [name for name in names.tolist() if name in self._row_of_class]:
            more = f" and {len(existing) - 1} more" * (len(existing) > 1)
            raise ValueError(f"y has {existing[0]!r}{more}, learned before: labels must be new")
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
        """A copy with smaller buckets, so that a search has fewer candidates than a whole class.

        One more level, made in seconds, separates parts of a class, by euclidean distances of the
        vectors that rank candidates; for ``metric="cosine"`` give vectors of length 1. ``X`` and
        ``y`` are labelled items of exactly the classes of the training. ``n_codes`` is about the
        speed-up of a search: at least one for each class, and at most ``width`` (with triplet one
        less) or as many as it has items.
        """
        torch: Any = require_extra("torch", "train")
        from hashcade.learn.recoding import refine_model, refine_prototypes

        config = self._require_fitted().config_
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

        With prototypes ``n_probe`` codes, and some more to fill up with, are ranked, and a search
        needs no scores: with ``scores=False`` they are not computed, and None. ``cancel`` cancels
        it when another thread sets it; then ``Cancelled`` is raised.
        """
        encoder, items = self.encoder, self._to_features(self._features, X)
        return encoder.encode(items, n_probe, progress, scores=scores, cancel=cancel or NEVER)

    def transform(self, X: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Bucket ids, int64[n, sparsity], best first."""
        return self.encoder.bucket_ids(self.encoder.outputs(self._items(X), scores=False))

    def place(self, encoded: Encoded, labels: npt.NDArray[np.object_]) -> Encoded:
        """Assign items to the buckets of their labels, object[n], others by the network.

        Unknown labels and None are ignored, and so are all labels if codes are not of classes.
        """
        codes = self._codes_of(labels)
        if codes is None:
            return encoded
        class_buckets = self.encoder.buckets_of_class(encoded.vectors, codes)
        buckets = np.where(codes[:, None] < 0, encoded.bucket_ids, class_buckets)
        return replace(encoded, bucket_ids=buckets)

    def place_items(
        self, X: npt.ArrayLike, labels: npt.NDArray[np.object_] | None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Vectors and buckets of items of a table, as :meth:`place` assigns them."""
        codes = None if labels is None else self._codes_of(labels)
        return self.encoder.place(self._items(X), codes)

    def _codes_of(self, labels: npt.NDArray[np.object_]) -> npt.NDArray[np.int64] | None:
        """Rows of labels in the code book, -1 for none; None if codes are not of classes."""
        config = self._require_fitted().config_
        if not ((config.uses_codebook and config.codes_of == "classes") or config.has_parts):
            return None
        rows = (self._row_of_class.get(label, -1) for label in labels.tolist())
        return np.fromiter(rows, np.int64, len(labels))

    def rank(self, vectors: npt.NDArray[np.float32], n_probe: int = 1) -> npt.NDArray[Any] | None:
        """Buckets of vectors, best first, if vectors are compared with prototypes; else None."""
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
        """Share of items whose nearest other item in their buckets has their class, 0 to 1.

        An item without candidates counts as wrong, so both mixed and scattered classes score low.
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
        """Write the model to a directory, atomically; an earlier model there is replaced."""
        from hashcade.data import ONNX_FILE

        config = {
            "hashcade_version": __version__,
            "settings": {**self.get_params(), "backbone": None, "features": None, "run_dir": None},
            "resolved": self._require_fitted().config_.to_json(),
            "classes": self.classes_.tolist(),
            "validation": self.validation_,
            "tuned": getattr(self, "tuned_", None),
        }
        onnx = None if self._features is None else self._features.onnx_content()
        extra_files = {} if onnx is None else {ONNX_FILE: onnx}
        files.write_tensors(Path(path), config, self._weights, extra_files=extra_files)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        backbone: nn.Module | None = None,
        features: nn.Module | None = None,
    ) -> Self:
        """Read a stored model; a user-defined ``torch.nn.Module`` is not stored: pass it again.

        If images need a package that is not installed, a warning is given; features still work.
        """
        stored, weights = files.read_tensors(Path(path))
        try:
            config = ResolvedConfig.from_json(stored["resolved"], backbone)
            not_stored = {"backbone": config.backbone, "features": None, "run_dir": None}
            hasher = cls(**{**stored["settings"], **not_stored})
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
        """Export the hasher as an ONNX file, for use without Python or torch (extra ``onnx``).

        From ``items``, float32 or uint8, to ``bucket_ids``, ``scores`` and ``vectors`` as in
        :meth:`encode`; but runtimes round differently, so an item between two codes may get either.
        """
        from hashcade.learn.onnx import export_onnx

        export_onnx(Path(path), self._require_fitted()._model(), self.config_)

    # -- interface of scikit-learn ---------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All settings by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    def set_params(self, **params: Any) -> Self:
        """Change settings by name. The fitted model stays until the next ``fit``."""
        allowed = self.get_params()
        for name in params.keys() - allowed.keys():
            raise ValueError(f"{name!r} is not a setting, must be one of {sorted(allowed)}")
        vars(self).update(params)
        return self

    def fit_transform(self, X: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Fit to labelled items, and return their buckets."""
        return self.fit(X, y).transform(X)

    def __repr__(self) -> str:
        default, params = type(self)().get_params(), self.get_params().items()
        changes = [f"{k}={v!r}" for k, v in params if v is not default[k] and v != default[k]]
        return f"{type(self).__name__}({', '.join(changes)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "shape_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags, TransformerTags

        return Tags(None, TargetTags(required=True), TransformerTags(preserves_dtype=[]))

    @property
    def encoder(self) -> Encoder:
        """The fitted model for inference."""
        return self._require_fitted()._encoder

    @property
    def item_shape(self) -> tuple[int, ...]:
        """``(size,)`` for embeddings, ``(height, width, 3)`` for images, once fitted."""
        return self._require_fitted().config_.item_shape

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the images that it takes; None if it takes none."""
        return self._require_fitted().config_.image_size

    @property
    def image_features(self) -> ImageFeatures | None:
        """The pre-trained network for features of images, if there is one."""
        return self._require_fitted()._features

    @property
    def n_features_in_(self) -> int:
        """Numbers per item, once fitted."""
        return int(np.prod(self.config_.item_shape))  # before fit an AttributeError

    def _copy(self, **changes: Any) -> Self:
        """An unfitted copy with the same settings and pre-trained network."""
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
        """For copies and pickles, which rebuild the encoder from the weights."""
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

    def _require_fitted(self) -> Self:
        if not hasattr(self, "_encoder"):
            hint = "call fit or Hasher.load first"
            raise NotFittedError("this Hasher is not fitted yet", hint=hint)
        return self

    def _items(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Checked items, with images converted to features."""
        return self.encoder.checked(self._to_features(self._features, X))


def _checked_n_codes(n_codes: object, limits: dict[str, int]) -> int:
    count = checked_count("n_codes", n_codes)
    for name, limit in limits.items():
        if count > limit:
            raise ValueError(f"n_codes={count} must be <= {name} = {limit}")
    return count


def _checked_classes(stored: Any) -> npt.NDArray[Any]:
    """Labels of a stored model: unique integers or strings."""
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

    model = hasher._require_fitted()._model()
    return for_all(model, model.features, torch.from_numpy(hasher._items(X)))


def base_vectors(hasher: Hasher, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Vectors for re-ranking, float32[n, size], from :func:`base_features`."""
    torch: Any = require_extra("torch", "train")
    from hashcade.learn.model import for_all

    model = hasher._require_fitted()._model()
    return for_all(model, model.vectors_of_features, torch.from_numpy(features))
