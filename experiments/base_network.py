"""The base network of one loss and seed, which all methods share: its items and vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.cache import Cache
from experiments.datasets import Dataset
from experiments.presets import Recipe
from hashcade.data import augment, efficientnet_features
from hashcade.errors import ConfigError
from hashcade.learn import Hasher, base_features, base_vectors

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Base:
    """What the methods share."""

    hasher: Hasher  # learned tables start from its base network, unless that is frozen
    train_items: npt.NDArray[Any]  # input of learned tables: images, features or embeddings
    test_items: npt.NDArray[Any]
    train_views: npt.NDArray[Any]  # what they are trained on: the same, or (n, views, size)
    train_images: npt.NDArray[Any]  # what the base network was given
    test_images: npt.NDArray[Any]
    features_are_learned: bool  # items are features of the base network
    train_vectors: Floats  # for re-ranking, and the input of the other methods
    test_vectors: Floats
    train_labels: npt.NDArray[np.int64]
    test_labels: npt.NDArray[np.int64]
    settings: dict[str, Any]  # all that it depends on
    seconds: float  # processor time of its training


def base_identity(dataset: Dataset, recipe: Recipe, loss: str, seed: int) -> dict[str, Any]:
    """All that a base depends on, as plain values."""
    return {
        "data": dict(dataset.identity),
        "features": None if recipe.features is None else dict(recipe.features),
        "base": recipe.base_settings(loss, seed),
    }


def make_base(
    dataset: Dataset, recipe: Recipe, loss: str, seed: int, cache: Cache, *, verbose: bool | None
) -> Base:
    """Train the base of a loss and seed, or take it from the cache."""
    identity = base_identity(dataset, recipe, loss, seed)
    views, test = input_items(dataset, recipe, cache, verbose=verbose)
    train = views[:, 0] if views.ndim == 3 else views
    images = train, test
    labels = dataset.train.labels

    def fit(run_dir: Path) -> Hasher:
        settings = {**identity["base"], "assignment": "path"}
        start = warmed_up(views, labels, recipe, seed, identity["data"], cache, verbose=verbose)
        return Hasher(**settings, run_dir=run_dir, verbose=verbose).fit(views, labels, start=start)

    hasher = cache.hasher("base", identity, fit)
    embed = hasher.embed
    if recipe.frozen:
        views = cache.array("views", identity, lambda: _feature_views(hasher, images[0], seed))
        train = np.ascontiguousarray(views[:, 0])
        test = cache.array("features", identity, lambda: base_features(hasher, images[1]))
        embed = partial(base_vectors, hasher)  # the network need not look at them again
    train_vectors = cache.array("train", identity, lambda: embed(train))
    test_vectors = cache.array("test", identity, lambda: embed(test))
    return Base(
        hasher=hasher,
        train_items=train,
        test_items=test,
        train_views=views,
        train_images=images[0],
        test_images=images[1],
        features_are_learned=recipe.frozen,
        train_vectors=train_vectors,
        test_vectors=test_vectors,
        train_labels=dataset.train.labels,
        test_labels=dataset.test.labels,
        settings=identity,
        seconds=cache.training_seconds("base", identity),
    )


def warmed_up(
    images: npt.NDArray[Any], labels: npt.NDArray[Any], recipe: Recipe, seed: int, data: Any,
    cache: Cache, *, verbose: bool | None,
) -> Hasher | None:  # fmt: skip
    """A hasher whose network was trained as a classifier, for all losses; None if none is."""
    if not recipe.base.get("warmup_steps"):
        return None
    network = {name: recipe.base[name] for name in ("backbone", "warmup_steps")}
    settings = {**network, "random_state": seed, "steps": 1, "base_steps": 1}
    settings |= {"base_learning_rate": 0.0, "assignment": "path"}

    def fit(run_dir: Path) -> Hasher:
        return Hasher(**settings, run_dir=run_dir, verbose=verbose).fit(images, labels)

    return cache.hasher("warmup", {"data": data, **settings}, fit)


def _feature_views(hasher: Hasher, images: npt.NDArray[np.uint8], seed: int) -> Floats:
    """Features of images and of changed ones, float32[n, views, size].

    Those of mirror images, or where the network takes care of them itself, of other crops.
    """
    if hasher.config_.backbone == "fast":
        changed = augment(images, np.random.default_rng(seed))
    else:
        changed = np.ascontiguousarray(images[:, :, ::-1])
    return np.stack([base_features(hasher, each) for each in (images, changed)], axis=1)


def input_items(
    dataset: Dataset, recipe: Recipe, cache: Cache, *, verbose: bool | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Training items and queries as the input of learned tables: as they are, or features of them.

    With the setting ``mirror=True`` features are the mean of those of an image and of its mirror
    image, and the training items come in three views, float32[n, 3, size]: the mean, and both by
    themselves.
    """
    if recipe.features is None:
        if recipe.base.get("backbone") in ("fast", "nin", "stride") and not dataset.has_images:
            raise ConfigError(
                f"{dataset.name} has no images for backbone={recipe.base['backbone']!r}"
            )
        return dataset.train.items, dataset.test.items
    settings = dict(recipe.features)
    mirror = settings.pop("mirror", False)

    def features(images: npt.NDArray[Any], **more: Any) -> Floats:
        folder = cache.path / "features"
        values = efficientnet_features(images, cache=folder, verbose=verbose, **settings, **more)
        return values.astype(np.float32)

    train, test = features(dataset.train.items), features(dataset.test.items)
    if mirror:
        train_mirrored = features(dataset.train.items, mirror=True)
        test_mirrored = features(dataset.test.items, mirror=True)
        train = np.stack([(train + train_mirrored) / 2, train, train_mirrored], axis=1)
        test = ((test + test_mirrored) / 2).astype(np.float32)
    return train, test
