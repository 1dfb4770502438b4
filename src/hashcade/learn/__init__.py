"""Learning: trains a hasher on labelled embeddings or images.

Most users only need :class:`Hasher`; :class:`ResolvedConfig` is its settings with defaults filled
in. :func:`read_config` and :func:`model_fingerprint` inspect a stored model without loading it. The
others are building blocks: networks, losses, :class:`ClassSampler`, :func:`kmeans`.

Training needs the extra ``train`` (torch), and so does a model for images. A stored model for
embeddings is loaded and used without it.
"""

from typing import TYPE_CHECKING

from hashcade._extras import check_extras
from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.learn.clustering import kmeans
    from hashcade.learn.config import ResolvedConfig, StageConfig
    from hashcade.learn.distributed import is_first_rank
    from hashcade.learn.fast import FastNet
    from hashcade.learn.files import copy_model, model_fingerprint, read_config
    from hashcade.learn.hasher import Hasher, base_features, base_vectors
    from hashcade.learn.inputs import checked_classes, checked_embeddings
    from hashcade.learn.losses import hash_npairs_loss, hash_triplet_loss, npairs_loss, triplet_loss
    from hashcade.learn.networks import MLP, NIN, StrideNet
    from hashcade.learn.one_query import warmup
    from hashcade.learn.sampler import ClassSampler
    from hashcade.learn.trainer import learning_rate_factor
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    _WITHOUT_TORCH = {
        "ClassSampler", "Hasher", "ResolvedConfig", "StageConfig", "checked_classes",
        "checked_embeddings", "copy_model", "is_first_rank", "model_fingerprint", "read_config",
        "warmup",
    }  # fmt: skip
    _MODULES = {
        "clustering": ["kmeans"],
        "config": ["ResolvedConfig", "StageConfig"],
        "distributed": ["is_first_rank"],
        "hasher": ["Hasher", "base_features", "base_vectors"],
        "inputs": ["checked_classes", "checked_embeddings"],
        "losses": ["hash_npairs_loss", "hash_triplet_loss", "npairs_loss", "triplet_loss"],
        "files": ["copy_model", "model_fingerprint", "read_config"],
        "fast": ["FastNet"],
        "networks": ["MLP", "NIN", "StrideNet"],
        "one_query": ["warmup"],
        "sampler": ["ClassSampler"],
        "trainer": ["learning_rate_factor"],
    }
    _lazy, __dir__ = lazy_names(__name__, _MODULES)

    def __getattr__(name):
        if name in __all__ and name not in _WITHOUT_TORCH:
            check_extras(torch="train")
        return _lazy(name)


__all__ = [
    "MLP", "NIN", "ClassSampler", "FastNet", "Hasher", "ResolvedConfig", "StageConfig", "StrideNet",
    "base_features", "base_vectors", "checked_classes", "checked_embeddings", "copy_model",
    "hash_npairs_loss", "hash_triplet_loss", "is_first_rank", "kmeans", "learning_rate_factor",
    "model_fingerprint", "npairs_loss", "read_config", "triplet_loss", "warmup",
]  # fmt: skip
