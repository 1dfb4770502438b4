"""Small images and their files."""

import numpy as np
from PIL import Image


def gradient(height, width):
    """Return an image in which every pixel is different."""
    y, x = np.mgrid[:height, :width]
    return np.stack([y * 7, x * 11, (x + y) * 5], axis=2).astype(np.uint8)


def save_image(path, pixels=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(gradient(4, 6) if pixels is None else pixels).save(path, **options)
    return path
