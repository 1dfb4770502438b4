"""Warnings about suspicious results, one line each, with advice."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_NEAR_CHANCE = 0.1  # fraction of the way from chance to 100 %
_BELOW = 1.0  # percentage points under exhaustive search
_LOW_PURITY = 0.5


def about_data(
    data: Any, labels: Sequence[Any] | None, image_size: tuple[int, int] | None
) -> list[str]:
    """Warnings about training data; ``image_size`` is the input size of the network."""
    warnings = []
    sizes = Counter(labels or ())
    single = sum(count == 1 for count in sizes.values())
    if 2 * single > len(sizes):
        warnings.append(
            f"{single:,} of {len(sizes):,} classes have one item only, of which nothing general "
            "can be learned; give more items of a class, or merge classes"
        )
    if data.n_small and image_size is not None:
        sides = "×".join(map(str, image_size))
        advice = "give larger ones" if data.features else "set a smaller --image-size"
        warnings.append(
            f"{data.n_small:,} of {len(data):,} images are smaller than the {sides} that the "
            f"network takes, and were enlarged; {advice}"
        )
    return warnings


def about_precision(
    precision: float, chance: float, exhaustive: float | None = None, *, images: bool = False
) -> list[str]:
    """Warnings about precision at 1, compared with chance and exhaustive search, in percent."""
    if precision < chance + _NEAR_CHANCE * (100 - chance):
        advice = "use pre-trained features (extra transfer)" if images else "use other embeddings"
        return [
            f"precision {precision:.1f} % is near chance ({chance:.1f} %); check that labels and "
            f"items belong together, {advice}, or train longer (--steps)"
        ]
    if exhaustive is not None and precision < exhaustive - _BELOW:
        return [
            f"precision {precision:.1f} % is under that of exhaustive search ({exhaustive:.1f} %); "
            "look into more buckets (--n-probe), or train longer (--steps)"
        ]
    return []


def about_buckets(stats: Mapping[str, Any]) -> list[str]:
    """Warnings about the buckets of a table."""
    purity = stats.get("purity")
    if purity is None or purity >= _LOW_PURITY:
        return []
    return [
        f"purity {100 * purity:.1f} %: most items share their buckets with other classes; train "
        "longer (--steps), with more items of a class, or a larger --width"
    ]


def chance(labels: Sequence[Any], queries: Sequence[Any] | None = None) -> float:
    """Precision, in percent, of results drawn at random from items with these labels."""
    sizes, query_sizes = Counter(labels), Counter(labels if queries is None else queries)
    right = sum(count * sizes[label] for label, count in query_sizes.items())
    return 100.0 * right / max(1, len(labels) * sum(query_sizes.values()))
