"""A small table, and one with a model that takes images."""

import numpy as np
import pytest

from tests.serve.browsing import BROWSER, FLAGS, PATIENCE
from tests.serve.factories import make_table, process, serving


@pytest.fixture
def place(tmp_path):
    """The directory of a table without a model."""
    return make_table(tmp_path / "table")


@pytest.fixture
def client(place):
    with serving(table=place) as client:
        yield client


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with a table of images and their pictures: handwritten digits, in seconds."""
    from sklearn.datasets import load_digits

    from hashcade import HashTable

    folder = tmp_path_factory.mktemp("trained")
    digits = load_digits()
    images, labels = digits.images[:600], digits.target[:600]
    images = np.repeat(np.repeat(images * 15.9, 2, axis=1), 2, axis=2).astype(np.uint8)
    images = np.repeat(images[..., None], 3, axis=3)  # uint8[600, 16, 16, 3]
    table = HashTable(
        width=6, depth=2, backbone="stride", embedding_size=16, augment="none",
        items_per_class=2, steps=20, base_steps=20, verbose=False,
    )  # fmt: skip
    names = np.array(["zero", "one", "two", "three", "four"])
    table.fit(images, np.array([*names, *"56789"])[labels])
    table.save(folder / "table")
    np.savez(folder / "pictures.npz", X=images, y=labels)
    return folder


@pytest.fixture(scope="session")
def photo_table(tmp_path_factory):
    """A folder with photos and a table of their features, by a network in an ONNX file."""
    from hashcade import HashTable
    from hashcade.data import ImageFeatures, load
    from tests.cli.cli_factories import make_photos
    from tests.data.test_extractor import write_encoder

    folder = tmp_path_factory.mktemp("photos")
    make_photos(folder / "photos", per_class=6)
    encoder = write_encoder(folder / "encoder.onnx")
    features = ImageFeatures(encoder, image_size=32, pixels="unit")
    photos = load(folder / "photos", features=features)
    table = HashTable(width=4, steps=30, features=features, verbose=False)
    table.fit(photos.items, photos.original_labels(), names=photos.names)
    table.catalog.data = folder / "photos"
    table.save(folder / "table")
    return folder


# -- the page --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(trained, tmp_path_factory):
    """The address of a service with a table of images."""
    log = tmp_path_factory.mktemp("page") / "log"
    settings = {"pictures": str(trained / "pictures.npz"), "read_only": True, "deadline": 120}
    with process(trained / "table", log=log, **settings) as service:
        yield service.url


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=BROWSER, args=FLAGS, timeout=PATIENCE, chromium_sandbox=False
        )
        yield made
        made.close()


@pytest.fixture
def open_page(browser, request):
    """Open pages that fail the test if they go wrong, or ask anyone but the service."""
    contexts, trouble = [], []

    def opened(address="", base=None, width=1280, height=900, scheme="light", expected=None):
        base = base or request.getfixturevalue("url")
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: trouble.append(str(error)))

        def logged(message):  # a browser logs every status above 400 as an error
            if message.type == "error" and not (expected and expected in message.text):
                trouble.append(message.text)

        page.on("console", logged)
        page.on(
            "request",
            lambda asked: asked.url.startswith((base, "blob:")) or trouble.append(asked.url),
        )
        page.goto(f"{base}/{address}")
        page.wait_for_selector("main h1")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert trouble == []
