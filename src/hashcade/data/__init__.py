"""Data: from files of many kinds to items with class numbers.

- :class:`LabelledItems`: what all of them return; :func:`encode_labels`: how labels become
  class numbers.
- :func:`imagenet_split`, :func:`imagenet_split_classes`: the classes of supplement D.

Needs numpy; Pillow for folders of images (extra ``images``), pyarrow for Parquet (extra
``parquet``). Pickles of official data sets are read without executing anything in them.
"""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.data._cifar100 import load_cifar100
    from hashcade.data._imagenet32 import load_imagenet32
    from hashcade.data._imagenet_split import imagenet_split, imagenet_split_classes
    from hashcade.data._items import LabelledItems
    from hashcade.data._labels import encode_labels
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "LabelledItems": "hashcade.data._items",
            "encode_labels": "hashcade.data._labels",
            "imagenet_split": "hashcade.data._imagenet_split",
            "imagenet_split_classes": "hashcade.data._imagenet_split",
            "load_cifar100": "hashcade.data._cifar100",
            "load_imagenet32": "hashcade.data._imagenet32",
        },
    )

__all__ = [
    "LabelledItems",
    "encode_labels",
    "imagenet_split",
    "imagenet_split_classes",
    "load_cifar100",
    "load_imagenet32",
]
