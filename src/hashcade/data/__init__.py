"""Data: loads files of many kinds as items with class numbers.

:func:`load` detects the kind of data at a path and loads it with labels, :func:`load_items`
without; :class:`ImageFeatures` are features of images from a pre-trained network. Needs the extras
``images``, ``parquet``, ``transfer`` and ``onnx``, each only if it is used.
"""

from hashcade.data.arrays import load_npy, load_npz, read_npy, read_npz
from hashcade.data.extractor import (
    ONNX_FILE,
    PIXELS,
    FeatureRecord,
    ImageFeatures,
    are_images,
    as_features,
)
from hashcade.data.feature_cache import feature_cache_directory
from hashcade.data.features import efficientnet_features
from hashcade.data.folder import list_image_folder, load_image_folder
from hashcade.data.images import IMAGE_FORMATS, MAX_PIXELS, read_image, resize_image
from hashcade.data.items import Items, LabelledItems, encode_labels
from hashcade.data.load import has_labels, holds_images, load, load_items, required_extras
from hashcade.data.parquet import load_parquet
from hashcade.data.sampling import stratified_sample
from hashcade.data.shard_rows import (
    ShardColumns,
    ShardInfo,
    ShardRows,
    read_shard_info,
    read_shard_rows,
)
from hashcade.data.shards import find_shards
from hashcade.data.transforms import augment, per_pixel_mean

__all__ = [
    "IMAGE_FORMATS", "MAX_PIXELS", "ONNX_FILE", "PIXELS", "FeatureRecord", "ImageFeatures", "Items",
    "LabelledItems", "ShardColumns", "ShardInfo", "ShardRows", "are_images", "as_features",
    "augment", "efficientnet_features", "encode_labels", "feature_cache_directory", "find_shards",
    "has_labels", "holds_images", "list_image_folder", "load", "load_image_folder", "load_items",
    "load_npy", "load_npz", "load_parquet", "per_pixel_mean", "read_image", "read_npy", "read_npz",
    "read_shard_info", "read_shard_rows", "required_extras", "resize_image", "stratified_sample",
]  # fmt: skip
