"""The base of all rows of one loss and seed: items as learned tables take them, and vectors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.errors import ConfigError
from hashcade.learn._features import efficientnet_features
from hashcade.learn._hasher import Hasher, base_features
from hashcade.reproduce._recipe import Recipe
from hashcade.reproduce._work import WorkFolder
from hashcade.reproduce._world import World

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Base:
    """What the methods share.

    Attributes
    ----------
    hasher
        Its base network is taken over by learned tables, unless it is frozen.
    train_items, test_items
        Images, features or embeddings: what learned tables take.
    train_views
        What they are trained on: the same, or features of several views of each image,
        float32[n, views, size].
    train_vectors, test_vectors : float32[n, size]
        For re-ranking, and what the other methods take.
    train_labels, test_labels : int64[n]
        Classes.
    settings
        All that it depends on.
    seconds
        Processor time of its training.
    """

    hasher: Hasher
    train_items: npt.NDArray[Any]
    test_items: npt.NDArray[Any]
    train_views: npt.NDArray[Any]
    train_vectors: Floats
    test_vectors: Floats
    train_labels: npt.NDArray[np.int64]
    test_labels: npt.NDArray[np.int64]
    settings: dict[str, Any]
    seconds: float


def base_identity(world: World, recipe: Recipe, loss: str, seed: int) -> dict[str, Any]:
    """All that a base depends on, as plain values."""
    return {
        "data": world.describe(),
        "features": None if recipe.features is None else dict(recipe.features),
        "base": recipe.base_settings(loss, seed),
    }


def make_base(
    world: World, recipe: Recipe, loss: str, seed: int, work: WorkFolder, *, verbose: bool | None
) -> Base:
    """Train the base of a loss and seed, or find it in the work folder."""
    identity = base_identity(world, recipe, loss, seed)
    views, test = input_items(world, recipe, work, verbose=verbose)
    train = views[:, 0] if views.ndim == 3 else views

    def fit(run_dir: Path) -> Hasher:
        settings = {**identity["base"], "assignment": "path"}  # its own table is a by-product
        return Hasher(**settings, run_dir=run_dir, verbose=verbose).fit(views, world.train.labels)

    hasher = work.hasher("base", identity, fit)
    train_vectors = work.array("train", identity, lambda: hasher.embed(train))
    test_vectors = work.array("test", identity, lambda: hasher.embed(test))
    if recipe.frozen:
        views = work.array("views", identity, lambda: _both_sides(hasher, train))
        train = views[:, 0]
        test = work.array("features", identity, lambda: base_features(hasher, test))
    return Base(
        hasher=hasher,
        train_items=train,
        test_items=test,
        train_views=views,
        train_vectors=train_vectors,
        test_vectors=test_vectors,
        train_labels=world.train.labels,
        test_labels=world.test.labels,
        settings=identity,
        seconds=work.training_seconds("base", identity),
    )


def _both_sides(hasher: Hasher, images: npt.NDArray[np.uint8]) -> Floats:
    """Features of images and of their mirror images, float32[n, 2, size]."""
    mirrored = np.ascontiguousarray(images[:, :, ::-1])
    return np.stack([base_features(hasher, images), base_features(hasher, mirrored)], axis=1)


def input_items(
    world: World, recipe: Recipe, work: WorkFolder, *, verbose: bool | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Items as learned tables take them, to train on and to ask with.

    The world's own, or features of its images. With the setting ``mirror=True`` those are the
    mean of the features of an image and of its mirror image, and the training items come in three
    views, float32[n, 3, size]: the mean, and both by themselves.
    """
    if recipe.features is None:
        if recipe.base.get("backbone") in ("nin", "stride") and not world.has_images:
            raise ConfigError(
                f"{world.name} has no images for backbone={recipe.base['backbone']!r}"
            )
        return world.train.items, world.test.items
    settings = dict(recipe.features)
    mirror = settings.pop("mirror", False)

    def features(images: npt.NDArray[Any], **more: Any) -> Floats:
        cache = work.path / "features"
        found = efficientnet_features(images, cache=cache, verbose=verbose, **settings, **more)
        return found.astype(np.float32)

    train, test = features(world.train.items), features(world.test.items)
    if mirror:
        of_train = features(world.train.items, mirror=True)
        of_test = features(world.test.items, mirror=True)
        train = np.stack([(train + of_train) / 2, train, of_train], axis=1)
        test = ((test + of_test) / 2).astype(np.float32)
    return train, test
