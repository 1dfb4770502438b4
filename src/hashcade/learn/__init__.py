"""Learning: from labelled embeddings or images to a trained hasher.

- :class:`Hasher`: the estimator, and all that most users need; :class:`ResolvedConfig` and
  :class:`StageConfig`: its settings with nothing left open; :func:`base_features`.
- :func:`read_config`, :func:`model_fingerprint`: of a stored model, without loading it.
- :class:`NIN`, :class:`StrideNet`: networks for 32×32 images; :class:`MLP`: one for vectors.
- :func:`triplet_loss`, :func:`npairs_loss`: losses of a base network, on plain embeddings.
- :func:`hash_triplet_loss`, :func:`hash_npairs_loss`: losses of one level of hash scores.
- Parts for other methods: :class:`ClassSampler`, :func:`kmeans`, :func:`learning_rate_factor`,
  :func:`checked_embeddings`, :func:`checked_classes`.

Needs the extra ``train`` (torch and safetensors), but for what looks at a stored model.
"""

from typing import TYPE_CHECKING

from hashcade._extras import check_extras
from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.learn.clustering import kmeans
    from hashcade.learn.config import ResolvedConfig, StageConfig
    from hashcade.learn.hasher import Hasher, base_features
    from hashcade.learn.inputs import checked_classes, checked_embeddings
    from hashcade.learn.losses import hash_npairs_loss, hash_triplet_loss, npairs_loss, triplet_loss
    from hashcade.learn.model_io import model_fingerprint, read_config
    from hashcade.learn.networks import MLP, NIN, StrideNet
    from hashcade.learn.sampler import ClassSampler
    from hashcade.learn.trainer import learning_rate_factor
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    _WITHOUT_TORCH = {"ClassSampler", "model_fingerprint", "read_config"}
    _lazy, __dir__ = lazy_names(
        __name__,
        {
            "ClassSampler": "hashcade.learn.sampler",
            "Hasher": "hashcade.learn.hasher",
            "MLP": "hashcade.learn.networks",
            "NIN": "hashcade.learn.networks",
            "ResolvedConfig": "hashcade.learn.config",
            "StageConfig": "hashcade.learn.config",
            "StrideNet": "hashcade.learn.networks",
            "base_features": "hashcade.learn.hasher",
            "checked_classes": "hashcade.learn.inputs",
            "checked_embeddings": "hashcade.learn.inputs",
            "hash_npairs_loss": "hashcade.learn.losses",
            "hash_triplet_loss": "hashcade.learn.losses",
            "kmeans": "hashcade.learn.clustering",
            "learning_rate_factor": "hashcade.learn.trainer",
            "model_fingerprint": "hashcade.learn.model_io",
            "npairs_loss": "hashcade.learn.losses",
            "read_config": "hashcade.learn.model_io",
            "triplet_loss": "hashcade.learn.losses",
        },
    )

    def __getattr__(name):
        if name in __all__ and name not in _WITHOUT_TORCH:
            check_extras(torch="train", safetensors="train")
        return _lazy(name)


__all__ = [
    "MLP",
    "NIN",
    "ClassSampler",
    "Hasher",
    "ResolvedConfig",
    "StageConfig",
    "StrideNet",
    "base_features",
    "checked_classes",
    "checked_embeddings",
    "hash_npairs_loss",
    "hash_triplet_loss",
    "kmeans",
    "learning_rate_factor",
    "model_fingerprint",
    "npairs_loss",
    "read_config",
    "triplet_loss",
]
