"""Han characters in 14 fonts: up to 20,902 real classes, made from font packages of Debian.

``make han`` installs the fonts and makes both sets; ``python -m experiments.datasets.han`` makes
them from fonts that are installed. Each character is drawn at 44 pixels in the middle of 48×48,
moved by up to two pixels. Its features are the square root of a histogram of 8 gradient
orientations in 8×8 cells, reduced to 128 numbers by a PCA of the training items. Ten fonts are the
training set, four others the queries.

A font without a character draws its sign for "missing". These are items like all others, as the
counts of the set say (10 and 4 per class), and no method can tell them apart: UMing lacks 2,185 of
the 20,902 characters, UKai 2,558. The arrays ``train_missing`` and ``test_missing`` name them. They
lie in few buckets, so that SUF is far below the number of classes where methods place items.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.datasets.files import write_npz
from experiments.progress import cache_folder
from hashcade.data import LabelledItems, read_npz
from hashcade.errors import DataError

FONTS = Path("/usr/share/fonts")
TRAIN_FONTS = (
    "opentype/noto/NotoSansCJK-Regular.ttc",
    "opentype/noto/NotoSansCJK-Light.ttc",
    "opentype/noto/NotoSansCJK-Bold.ttc",
    "opentype/noto/NotoSansCJK-Black.ttc",
    "opentype/noto/NotoSerifCJK-Regular.ttc",
    "opentype/noto/NotoSerifCJK-Bold.ttc",
    "opentype/noto/NotoSerifCJK-ExtraLight.ttc",
    "truetype/arphic/uming.ttc",
    "truetype/wqy/wqy-zenhei.ttc",
    "truetype/hanazono/HanaMinA.ttf",
)
TEST_FONTS = (
    "truetype/droid/DroidSansFallbackFull.ttf",
    "truetype/arphic/ukai.ttc",
    "truetype/babelstone/BabelStoneHan.ttf",
    "truetype/wqy/wqy-microhei.ttc",
)
FIRST, LAST = 0x4E00, 0x9FA5  # the block of Unicode 1.1
SIZES = (2000, LAST - FIRST + 1)

_SIZE, _SIDE, _SHIFT = 44, 48, 2  # pixels
_CELLS, _ORIENTATIONS, _DIM = 8, 8, 128
_BATCH = 500  # images at a time
_NO_CHARACTER = "\U0010ffff"  # never in a font: drawn as the sign for a missing character

Floats = npt.NDArray[np.float32]


def load_han(
    n_classes: int, split: str, *, drop_missing: bool = False, cache: Path | None = None
) -> LabelledItems:
    """Load one part of a set, ``"train"`` or ``"test"``; a set that is not there yet is made.

    Class names are code points. ``n_classes`` is one of :data:`SIZES`. With ``drop_missing`` the
    signs for missing characters are left out.
    """
    path = make_han(n_classes, cache=cache)
    arrays = read_npz(path)
    items, labels = arrays[split], arrays[f"{split}_labels"]
    if drop_missing:
        is_drawn = ~arrays[f"{split}_missing"]
        items, labels = items[is_drawn], labels[is_drawn]
    return LabelledItems.from_arrays(items, labels, source=f"{path} ({split})")


def make_han(n_classes: int, *, cache: Path | None = None) -> Path:
    """File of a set: ``han-2000.npz`` or ``han-20902.npz`` in ``data`` of the cache folder.

    The 2,000 classes are drawn at random from the 20,902, always the same ones.
    """
    if n_classes not in SIZES:
        raise ValueError(f"n_classes={n_classes} must be one of {', '.join(map(str, SIZES))}")
    path = (cache or cache_folder() / "data") / f"han-{n_classes}.npz"
    if not path.is_file():
        rng = np.random.default_rng(0)
        drawn = rng.choice(SIZES[-1], n_classes, replace=False)
        write_set(path, FIRST + np.sort(drawn), TRAIN_FONTS, TEST_FONTS)
    return path


def write_set(
    path: Path,
    characters: npt.NDArray[np.int64],
    train_fonts: Sequence[str],
    test_fonts: Sequence[str],
) -> None:
    """Draw characters in fonts, and write features, labels (code points) and what is missing."""
    fonts = (*train_fonts, *test_fonts)
    absent = [font for font in fonts if not (FONTS / font).is_file()]
    if absent:
        raise DataError(
            f"{len(absent)} of {len(fonts)} fonts are missing: {', '.join(absent)}",
            hint="install them: make fonts (Debian or Ubuntu)",
        )
    drawn = []
    for number, font in enumerate(fonts):
        print(f"{path.stem}: font {number + 1} of {len(fonts)}, {Path(font).stem}", file=sys.stderr)
        drawn.append(_features(number, font, characters))
    arrays: dict[str, npt.NDArray[Any]] = {}
    project = None
    for split, parts in (("train", drawn[: len(train_fonts)]), ("test", drawn[len(train_fonts) :])):
        features = np.concatenate([part[0] for part in parts])
        project = project or _Projection(features)
        arrays[split] = project(features).astype(np.float16)
        arrays[f"{split}_labels"] = np.tile(characters, len(parts))
        arrays[f"{split}_missing"] = np.concatenate([part[1] for part in parts])
    write_npz(path, arrays)


# -- from a character to features ----------------------------------------------------------------


def _features(
    number: int, name: str, characters: npt.NDArray[np.int64]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Features of characters in a font, float32[n, 512], and which of them it does not have."""
    from PIL import ImageFont

    font = ImageFont.truetype(FONTS / name, _SIZE, layout_engine=ImageFont.Layout.BASIC)
    # A character moves the same way in every set that has it.
    moves = np.random.default_rng([0, number]).integers(-_SHIFT, _SHIFT + 1, (SIZES[-1], 2))
    sign = bytes(font.getmask(_NO_CHARACTER))
    features = np.empty((len(characters), _CELLS * _CELLS * _ORIENTATIONS), np.float32)
    missing = np.empty(len(characters), np.bool_)
    for start in range(0, len(characters), _BATCH):
        codes = characters[start : start + _BATCH]
        images = np.zeros((len(codes), _SIDE, _SIDE), np.float32)
        for row, code in enumerate(codes):
            ink = font.getmask(chr(code))
            missing[start + row] = bytes(ink) == sign
            _paste(
                images[row], np.array(ink, np.uint8).reshape(ink.size[::-1]), moves[code - FIRST]
            )
        features[start : start + len(codes)] = orientation_histograms(images)
    return features, missing


def _paste(image: Floats, ink: npt.NDArray[np.uint8], move: npt.NDArray[np.int64]) -> None:
    """Put the ink into the middle of an empty image, moved; what is outside is cut off."""
    corner = (np.array(image.shape) - ink.shape) // 2 + move
    begin, end = np.maximum(corner, 0), np.minimum(corner + ink.shape, image.shape)
    (y, x), (bottom, right) = begin, end
    (top, left) = begin - corner
    image[y:bottom, x:right] = ink[top : top + bottom - y, left : left + right - x] / 255


def orientation_histograms(images: Floats) -> Floats:
    """Square roots of gradient orientations in 8×8 cells, weighted by length: float32[n, 512]."""
    n, side, _ = images.shape
    down, right = np.gradient(images, axis=(1, 2))
    lengths = np.hypot(right, down)
    # Light on dark and dark on light are one orientation: half a turn has 8 of them.
    steps = np.arctan2(down, right) * (_ORIENTATIONS / np.pi)
    orientations = np.rint(steps).astype(np.int8) % _ORIENTATIONS
    cells = (n, _CELLS, side // _CELLS, _CELLS, side // _CELLS)
    histograms = [
        np.where(orientations == each, lengths, 0).reshape(cells).sum(axis=(2, 4))
        for each in range(_ORIENTATIONS)
    ]
    return np.sqrt(np.stack(histograms, axis=-1, dtype=np.float32)).reshape(n, -1)


class _Projection:
    """The first principal components of features."""

    def __init__(self, features: Floats) -> None:
        self._mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
        covariance = np.zeros((features.shape[1],) * 2)
        for part in self._centred(features):
            covariance += part.T @ part
        components = np.linalg.eigh(covariance)[1][:, : -_DIM - 1 : -1]
        # A component may point either way: its largest entry is positive.
        largest = np.abs(components).argmax(axis=0)
        components = components * np.sign(components[largest, np.arange(components.shape[1])])
        self._components = components.astype(np.float32)

    def __call__(self, features: Floats) -> Floats:
        return np.concatenate([part @ self._components for part in self._centred(features)])

    def _centred(self, features: Floats) -> Iterator[Floats]:
        for start in range(0, len(features), _BATCH):
            yield features[start : start + _BATCH] - self._mean


if __name__ == "__main__":
    for size in SIZES:
        print(make_han(size))
