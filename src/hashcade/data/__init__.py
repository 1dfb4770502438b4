"""Data: from files of many kinds to items with class numbers.

- :func:`load`: recognises what is at a path, and loads it.
- :func:`load_cifar100`, :func:`load_imagenet32`, :func:`load_image_folder`: images.
- :func:`load_npy`, :func:`load_npz`, :func:`load_parquet`: embeddings (or images) in arrays.
- :func:`load_items`: the items alone, without labels; :func:`read_image`: one image.
- :class:`LabelledItems`: what all of them return; :func:`encode_labels`: how labels become
  class numbers.
- :func:`download_cifar100`: gets the archive from the official site.
- :func:`imagenet_split`, :func:`imagenet_split_classes`: the classes of supplement D.
- :func:`per_pixel_mean`, :func:`centre_pixels`, :func:`augment`: images for a network.

Needs numpy; Pillow for folders of images (extra ``images``), pyarrow for Parquet (extra
``parquet``). Pickles of official data sets are read without executing anything in them.
"""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.data._arrays import load_npy, load_npz
    from hashcade.data._cifar100 import load_cifar100
    from hashcade.data._download import download_cifar100
    from hashcade.data._folder import load_image_folder, read_image
    from hashcade.data._imagenet32 import load_imagenet32
    from hashcade.data._imagenet_split import imagenet_split, imagenet_split_classes
    from hashcade.data._items import LabelledItems
    from hashcade.data._labels import encode_labels
    from hashcade.data._load import load
    from hashcade.data._parquet import load_parquet
    from hashcade.data._plain import PlainItems, has_labels, load_items
    from hashcade.data._transforms import augment, centre_pixels, per_pixel_mean
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "LabelledItems": "hashcade.data._items",
            "PlainItems": "hashcade.data._plain",
            "augment": "hashcade.data._transforms",
            "centre_pixels": "hashcade.data._transforms",
            "download_cifar100": "hashcade.data._download",
            "encode_labels": "hashcade.data._labels",
            "has_labels": "hashcade.data._plain",
            "imagenet_split": "hashcade.data._imagenet_split",
            "imagenet_split_classes": "hashcade.data._imagenet_split",
            "load": "hashcade.data._load",
            "load_cifar100": "hashcade.data._cifar100",
            "load_image_folder": "hashcade.data._folder",
            "load_imagenet32": "hashcade.data._imagenet32",
            "load_items": "hashcade.data._plain",
            "load_npy": "hashcade.data._arrays",
            "load_npz": "hashcade.data._arrays",
            "load_parquet": "hashcade.data._parquet",
            "per_pixel_mean": "hashcade.data._transforms",
            "read_image": "hashcade.data._folder",
        },
    )

__all__ = [
    "LabelledItems",
    "PlainItems",
    "augment",
    "centre_pixels",
    "download_cifar100",
    "encode_labels",
    "has_labels",
    "imagenet_split",
    "imagenet_split_classes",
    "load",
    "load_cifar100",
    "load_image_folder",
    "load_imagenet32",
    "load_items",
    "load_npy",
    "load_npz",
    "load_parquet",
    "per_pixel_mean",
    "read_image",
]
