"""A table of photos: learn, search by a photo, add one, and look at how good it is.

Needs the extras ``transfer`` and ``images``. The photos are drawn here; take your own.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from hashcade import HashTable
from hashcade.data import ImageFeatures, load

# Fruit on a plate: round things of a color each, of any size and in any place.
rng = np.random.default_rng(0)
COLORS = {"apple": (200, 40, 40), "lemon": (230, 210, 40), "lime": (80, 180, 50)}


def draw(color):
    """One photo."""
    rows, columns = np.mgrid[:240, :320]
    y, x, radius = rng.integers(80, 160), rng.integers(80, 240), rng.integers(30, 70)
    inside = (rows - y) ** 2 + (columns - x) ** 2 < radius**2
    pixels = np.where(inside[..., None], color, 235) + 12 * rng.normal(size=(240, 320, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


for name, color in COLORS.items():
    (Path("photos") / name).mkdir(parents=True)
    for number in range(8):
        draw(color).save(Path("photos") / name / f"{number}.jpg")
draw(COLORS["lemon"]).save("query.jpg")

# Features of a pre-trained network, computed once and then read from the folder "cache".
features = ImageFeatures("efficientnet-lite0")
photos = load("photos", features=features, cache="cache")
print(photos.items.shape, photos.names[0])  # (24, 1280) apple/0.jpg

# The table keeps the network: wherever items are taken, photos are.
table = HashTable(features=features, steps=60)
table.fit(photos.items, photos.original_labels(), names=photos.names)
table.save("fruit.table")
table = HashTable.load("fruit.table")
print([match.label for match in table.search("query.jpg", 3)[0]])  # ['lemon', 'lemon', 'lemon']

ids = table.add(["query.jpg"], labels=["lemon"], names=["query.jpg"])
print(table.search("query.jpg", 1)[0][0].name)  # query.jpg

evaluation = table.evaluate(photos.items, photos.original_labels(), exclude_self=True)
print(evaluation.precision[1])  # 100.0
