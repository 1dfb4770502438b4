"""The page in a browser: the search by image, the tree, and everything by keyboard."""

import numpy as np
import pytest
from PIL import Image

from hashcade import HashTable
from hashcade.index import Encoded
from tests.serve.browsing import keep, needs_browser, serious
from tests.serve.factories import make_table, process

pytestmark = needs_browser


@pytest.fixture(scope="module")
def upload(trained, tmp_path_factory):
    """A digit as a file."""
    with np.load(trained / "pictures.npz") as stored:
        pixels = stored["X"][42]
        label = int(stored["y"][42])
    path = tmp_path_factory.mktemp("upload") / "digit.png"
    Image.fromarray(pixels).save(path)
    return path, label


def test_search_by_upload(open_page, upload):
    path, _ = upload
    page = open_page()
    page.set_input_files("#upload", path)
    page.wait_for_selector(".neighbours li")
    assert page.locator(".neighbours li").count() == 10
    first = page.locator(".neighbours a").first
    assert first.get_attribute("href") == "#/item/42"  # the item that the file was made from
    headline = page.locator(".headline").inner_text()
    assert " of 600 items compared" in headline
    n_compared = int(headline.split()[0].replace(",", ""))
    assert 10 <= n_compared < 600
    assert page.locator(".path .step").count() == 3  # all items, and two levels
    assert page.locator(".bucket").count() >= 1
    assert page.locator(".bucket .legend li").count() >= 1
    assert page.locator(".bucket .strip img").count() >= 1
    keep(page, "upload")


def test_an_image_can_be_dropped(open_page, upload):
    path, _ = upload
    page = open_page()
    data = page.evaluate_handle(
        """async (bytes) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], "digit.png", {type: "image/png"}));
            return transfer;
        }""",
        list(path.read_bytes()),
    )
    page.dispatch_event(".drop", "drop", {"dataTransfer": data})
    page.wait_for_selector(".neighbours li")
    assert page.locator(".neighbours a").first.get_attribute("href") == "#/item/42"


def test_a_file_that_is_no_image_is_told_in_words(open_page, tmp_path):
    (tmp_path / "letter.png").write_text("Dear all")
    page = open_page(expected="422")
    page.set_input_files("#upload", tmp_path / "letter.png")
    assert "the image cannot be read" in page.wait_for_selector("[role=alert]").inner_text()


def test_walk_the_tree_to_the_items_of_a_bucket(open_page):
    page = open_page("#/tree")
    tiles = page.locator(".tile")
    assert tiles.count() >= 2
    assert "600 entries" in page.locator(".note").first.inner_text()
    keep(page, "tree")
    tiles.first.click()
    page.wait_for_selector(".crumbs li:nth-child(2)")
    keep(page, "node")
    page.locator(".tile").first.click()
    page.wait_for_selector(".grid.wide .item")
    size = int(page.locator(".note").first.inner_text().split()[0])
    assert page.locator(".grid.wide .item").count() == min(size, 60)
    keep(page, "bucket")
    page.locator(".grid.wide .item").first.click()
    page.wait_for_selector(".neighbours li")
    page.go_back()
    page.wait_for_selector(".grid.wide .item")
    page.locator(".crumbs a").first.click()
    page.wait_for_selector("h1:has-text('The tree')")


def test_tiles_are_as_large_as_what_lies_below(open_page):
    page = open_page("#/tree")
    told = page.evaluate(
        """() => [...document.querySelectorAll('.tile')].map((tile) => {
            const box = tile.getBoundingClientRect();
            const n = Number(tile.getAttribute('aria-label').match(/([0-9,]+) entr/)[1]);
            return [box.width * box.height, n];
        })"""
    )
    whole = page.evaluate(
        "() => { const b = document.querySelector('.map').getBoundingClientRect();"
        " return b.width * b.height; }"
    )
    assert sum(area for area, _ in told) == pytest.approx(whole, rel=1e-3)
    for area, n in told:
        assert area / whole == pytest.approx(n / 600, rel=1e-2)


def test_everything_by_keyboard(open_page):
    page = open_page()

    def focused():
        return page.evaluate("document.activeElement.outerHTML.slice(0, 200)")

    page.keyboard.press("Tab")
    assert "Skip" in focused()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(40):  # to the first item, and open it
        page.keyboard.press("Tab")
        if 'class="item"' in focused():
            break
    else:
        pytest.fail("no item can be reached")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    page.wait_for_selector(".neighbours li")
    page.wait_for_selector("h1:focus")
    # An item by its number.
    page.focus("#item-id")
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:focus:has-text('Neighbours of item 7')")
    # The tree: arrows move, Enter opens, Backspace goes up.
    page.focus("nav a[data-page=tree]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tile")
    page.focus(".tile")
    first = focused()
    for key in ("ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert focused() != first
    assert "tile" in focused()
    page.keyboard.press("Enter")
    page.wait_for_selector(".crumbs li:nth-child(2)")
    page.focus(".tile")
    page.keyboard.press("Backspace")
    page.wait_for_selector("h1:has-text('The tree')")


@pytest.mark.parametrize(
    ("scheme", "name", "width"),
    [
        ("light", "wide", 1280),
        pytest.param("dark", "narrow", 360, marks=pytest.mark.slow),
        pytest.param("dark", "wide", 1280, marks=pytest.mark.slow),
        pytest.param("light", "narrow", 360, marks=pytest.mark.slow),
    ],
)
def test_light_dark_wide_narrow_and_open_to_everyone(open_page, scheme, name, width):
    pages = {"search": "", "item": "#/item/5", "tree": "#/tree", "bucket": "#/tree/", "api": "api"}
    page = None
    for place, address in pages.items():
        if place == "bucket":
            address += page.locator(".tile").first.get_attribute("href").removeprefix("#/tree/")
        page = open_page(address, width=width, height=800, scheme=scheme)
        if place == "tree" and name == "narrow":
            page.wait_for_selector(".slots li")  # a list, until a map is asked for
            assert serious(page) == []
            page.click("[data-view=map]")
        wait = {"item": ".neighbours li", "tree": ".tile", "api": ".route"}.get(place, "main h1")
        page.wait_for_selector(wait)
        keep(page, f"{name}-{scheme}-{place}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(part) for part in background[4:-1].split(",")) / 3
        assert (brightness < 80) == (scheme == "dark")
        assert serious(page) == []


def test_colours_can_be_chosen_and_are_kept(open_page):
    page = open_page()
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert after != before
    page.reload()
    page.wait_for_selector("main h1")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == after


def test_embeddings_without_pictures_show_labels(open_page, tmp_path):
    classes = ["ant", "bee", 3, "dog", "<b>elk</b>"]
    table = make_table(tmp_path / "table", classes=classes, names={3: "three.png"})
    with process(table, deadline=120, log=tmp_path / "log") as service:
        page = open_page("#/item/3", base=service.url)
        page.wait_for_selector(".neighbours li")
        words = page.locator(".chooser .caption").all_inner_texts()
        assert set(words) <= {str(label) for label in classes}  # a label is never markup
        assert "Item 3" in page.locator(".query h2").inner_text()
        assert page.locator(".query dd").all_inner_texts() == ["three.png"]
        assert page.locator(".neighbours .nopicture").count() == 10
        assert page.locator("#upload, #vector").count() == 0  # there is no model
        keep(page, "labels")
        page.goto(f"{service.url}/#/tree")
        page.wait_for_selector(".tile")
        assert serious(page) == []
        keep(page, "labels-tree")
        page.close()


def test_results_show_their_names_and_payload(open_page, tmp_path):
    path = make_table(tmp_path / "table")
    payload = {"text": "<b>two</b> words", "tags": ["x", 1], "price": None, "more": "long " * 200}
    with HashTable.open(path) as table:
        item = table[3]
        same = Encoded(item.vector[None], np.array([item.bucket_ids]), None, by_path=False)
        table.add(same, ids=[9000], names=["folder/near.png"], payload=[payload])
    with process(path, read_only=True, deadline=120, log=tmp_path / "log") as service:
        page = open_page("#/item/3", base=service.url, width=360)
        page.wait_for_selector(".neighbours li")
        first = page.locator(".neighbours li").first
        assert first.locator("a").get_attribute("href") == "#/item/9000"
        assert first.locator(".text").inner_text() == "<b>two</b> words"  # never markup
        assert first.locator("dt").all_inner_texts() == ["name", "tags", "more"]
        shown = first.locator("dd").all_inner_texts()
        assert shown[:2] == ["near.png", '["x",1]']  # a name is whole in its title alone
        assert first.locator("dl div").first.get_attribute("title") == "name: folder/near.png"
        assert first.locator("dd").last.bounding_box()["height"] < 100
        assert page.locator(".neighbours li").nth(1).locator("dl").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert serious(page) == []
        keep(page, "payload")
        page = open_page("#/item/9000", base=service.url)
        page.wait_for_selector(".neighbours li")
        assert page.locator(".query .text").inner_text() == "<b>two</b> words"
        assert page.locator(".query dt").all_inner_texts() == ["name", "tags", "more"]
        keep(page, "payload-query")
        page.close()


def test_a_table_of_photos_is_searched_by_a_photo(open_page, photo_table, tmp_path):
    settings = {"read_only": True, "deadline": 300}
    with process(photo_table / "table", log=tmp_path / "log", **settings) as service:
        page = open_page(base=service.url)
        page.set_input_files("#upload", photo_table / "photos" / "leaf" / "02.jpg")
        page.wait_for_selector("h1:has-text('Neighbours of your image')")
        page.wait_for_selector("main img.thumb")
        assert "leaf" in page.inner_text("main")
        page.wait_for_load_state("networkidle")  # before the service goes
