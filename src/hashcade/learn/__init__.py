"""Learning: from labelled embeddings or images to a trained hasher.

- :class:`Hasher`: the estimator, and all that most users need.
- :class:`NIN`, :class:`StrideNet`: networks for 32×32 images; :class:`MLP`: one for vectors.
- :func:`efficientnet_features`: features of images from EfficientNet-Lite0 (extra ``transfer``).
- :class:`ClassSampler`: batches of n classes × m items that leave nothing out.
- :func:`triplet_loss`, :func:`npairs_loss`: losses of a base network, on plain embeddings.
- :func:`hash_triplet_loss`, :func:`hash_npairs_loss`: losses of one level of hash scores.

Needs the extra ``train`` (torch and safetensors).
"""

from typing import TYPE_CHECKING

from hashcade._extras import require_extra
from hashcade._lazy import lazy_names

require_extra("torch", "train")
require_extra("safetensors", "train")

if TYPE_CHECKING:
    from hashcade.learn._features import efficientnet_features
    from hashcade.learn._hasher import Hasher
    from hashcade.learn._networks import MLP, NIN, StrideNet
    from hashcade.learn._npairs import hash_npairs_loss, npairs_loss
    from hashcade.learn._sampler import ClassSampler
    from hashcade.learn._triplet import hash_triplet_loss, triplet_loss
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "ClassSampler": "hashcade.learn._sampler",
            "Hasher": "hashcade.learn._hasher",
            "MLP": "hashcade.learn._networks",
            "NIN": "hashcade.learn._networks",
            "StrideNet": "hashcade.learn._networks",
            "efficientnet_features": "hashcade.learn._features",
            "hash_npairs_loss": "hashcade.learn._npairs",
            "hash_triplet_loss": "hashcade.learn._triplet",
            "npairs_loss": "hashcade.learn._npairs",
            "triplet_loss": "hashcade.learn._triplet",
        },
    )

__all__ = [
    "MLP",
    "NIN",
    "ClassSampler",
    "Hasher",
    "StrideNet",
    "efficientnet_features",
    "hash_npairs_loss",
    "hash_triplet_loss",
    "npairs_loss",
    "triplet_loss",
]
