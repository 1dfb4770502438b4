"""The page with tables of many classes and of many items: the first view comes at once."""

import numpy as np
import pytest

from hashcade import CodeShape, HashIndex, HashTable
from hashcade.store import Catalog
from tests.serve.browsing import keep, needs_browser
from tests.serve.factories import process

pytestmark = [needs_browser, pytest.mark.slow, pytest.mark.alone]
VIEWS = {"": ".grid .item", "#/item/5": ".neighbours li", "#/tree": ".map .tile"}
SIZES = {"classes": (20_000, 60_000, 142), "items": (1_000, 1_000_000, 32)}
LONGEST = 1000  # milliseconds from the load of the page to the view


@pytest.mark.parametrize("name", SIZES)
def test_the_first_view_comes_within_a_second(open_page, tmp_path, name):
    n_classes, n_items, width = SIZES[name]
    rng = np.random.default_rng(0)
    labels = np.arange(n_items) % n_classes
    vectors = (labels[:, None] + rng.normal(size=(n_items, 8))).astype(np.float32)
    shape = CodeShape(width=width, depth=2)
    index = HashIndex.build(labels, vectors, labels=labels, shape=shape)
    classes = [f"{number:05d}.Class_{number}" for number in range(n_classes)]
    HashTable.from_parts(None, index, Catalog(classes)).save(tmp_path / "table")
    with process(tmp_path / "table", log=tmp_path / "log", read_only=True, deadline=120) as service:
        for number, (address, wait) in enumerate(VIEWS.items()):
            page = open_page(address, base=service.url)
            page.wait_for_selector(wait)
            took = page.evaluate(
                "performance.getEntriesByName('view')[0].startTime"
                " - performance.getEntriesByType('navigation')[0].loadEventEnd"
            )
            print(f"{name} {address or '#/search'}: {took:.0f} ms after load")
            assert took < LONGEST
            keep(page, f"large-{name}-{number}")
        page.close()
